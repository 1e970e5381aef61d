"""The timeline of a plan: the gradients in a row, each with work before and after its share of the messages."""

from __future__ import annotations

from treadle.planner.passes.sparse.counts import GradientCounts
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.prices import SchemePrice, SchemePrices
from treadle.planner.passes.sparse.schemes import BY_NAME
from treadle.planner.timeline.simulator import Resource, Task

DEVICE, LINK = "device", "link"


def exchange_of(decisions: SparseDecisions) -> tuple[tuple[Task, ...], tuple[Resource, ...]]:
    """The tasks of all gradients in a row, and the resources that they hold. They end when the plan does."""
    prices, tasks = SchemePrices(decisions.problem), list[Task]()
    for plan, gradient in zip(decisions.gradients, decisions.problem.gradients, strict=True):
        price = prices.price(BY_NAME[plan.scheme], GradientCounts(decisions.problem, gradient))
        for name, ns, resource in _steps(prices, price):
            tasks.append(Task(f"{name} {plan.name}", ns, (resource,), (len(tasks) - 1,) if tasks else ()))
    return tuple(tasks), (Resource(DEVICE), Resource(LINK))


def _steps(prices: SchemePrices, price: SchemePrice) -> list[tuple[str, int, str]]:
    """(name, ns, resource) in a row. Ends on the device are rounded, so that they add up to the price."""
    ticks, ends = 0, [0]
    for stage in (*price.before, *price.after):
        ticks += stage.ticks
        ends.append(prices.rounded(ticks))
    steps = [
        (stage.name, ends[place + 1] - ends[place], DEVICE) for place, stage in enumerate((*price.before, *price.after))
    ]
    link = [("exchange", price.link_ns, LINK)] if price.link_ns else []
    return [*steps[: len(price.before)], *link, *steps[len(price.before) :]]
