"""The timeline of a plan: the gradients one after the other, each with work before and after its messages."""

from __future__ import annotations

from fractions import Fraction

from treadle.planner.passes.sparse.counts import GradientCounts
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.prices import SchemePrice, SchemePrices, rounded
from treadle.planner.passes.sparse.schemes import BY_NAME
from treadle.planner.timeline.simulator import Resource, Task

DEVICE, LINK = "device", "link"


def exchange_of(decisions: SparseDecisions) -> tuple[tuple[Task, ...], tuple[Resource, ...]]:
    """The tasks of all gradients in a row, and the resources that they hold. They end when the plan does."""
    prices, tasks = SchemePrices(decisions.problem), list[Task]()
    for plan, gradient in zip(decisions.gradients, decisions.problem.gradients, strict=True):
        price = prices.price(BY_NAME[plan.scheme], GradientCounts(decisions.problem, gradient))
        for name, ns, resource in steps_of(price):
            after = (len(tasks) - 1,) if tasks else ()
            tasks.append(Task(f"{name} {plan.name}", ns, (resource,), after))
    return tuple(tasks), (Resource(DEVICE), Resource(LINK))


def steps_of(price: SchemePrice) -> list[tuple[str, int, str]]:
    """(name, ns, resource) of the stages in a row. Ends on the device are rounded, so that they add up to the price."""
    steps, exact = list[tuple[str, int, str]](), Fraction()
    for place, stage in enumerate((*price.before, *price.after)):
        if place == len(price.before) and price.link_ns:
            steps.append(("exchange", price.link_ns, LINK))
        steps.append((stage.name, rounded(exact + stage.ns) - rounded(exact), DEVICE))
        exact += stage.ns
    if price.link_ns and not price.after:
        steps.append(("exchange", price.link_ns, LINK))
    return steps
