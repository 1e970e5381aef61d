"""Whether a plan of ranks may run, from its decisions alone: orders, and what they cost.

It shares no code with what prices orders for the planner.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_low

from treadle.planner.passes.ranks.check_costs import CountedCosts
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.samples import random_orders

Findings = Iterator[tuple[str, object, str]]
"""Path, what was found there, and what was expected."""


def check(decisions: RanksDecisions) -> list[str]:
    """Findings, each with its path; none for a plan whose orders have every host once, whose costs are those of its
    problem, and that is not worse than the hosts as they were handed out."""
    found: list[tuple[str, object, str]] = [
        (f"$.decisions.problem{path[1:]}", seen, expected) for path, seen, expected in decisions.problem.problems()
    ]
    found = found or [*_orders(decisions)] or [*_costs(decisions)]
    return [f"{path}: found {seen}, expected {expected}" for path, seen, expected in found]


def _orders(decisions: RanksDecisions) -> Findings:
    count = len(decisions.problem.hosts)
    for name in ("order", "worst"):
        order: tuple[int, ...] = getattr(decisions, name)
        if len(order) != count:
            yield f"$.decisions.{name}", f"{len(order)} hosts", f"each of the {count} hosts once"
            continue
        seen: set[int] = set()
        for place, host in enumerate(order):
            if host >= count or host in seen:
                what = f"host {host}" if host >= count else f"host {host} again"
                yield f"$.decisions.{name}[{place}]", what, f"each of the {count} hosts once"
                break
            seen.add(host)


def _costs(decisions: RanksDecisions) -> Findings:
    problem, order = decisions.problem, decisions.order
    counted = CountedCosts(problem)
    original = tuple(range(len(order)))
    random = median_low(map(counted.cost, random_orders(len(order))))
    figures = {
        "cost_ns": (counted.cost(order), "the cost of the order"),
        "tie_ns": (counted.tie(order), "what decides between orders of equal cost"),
        "original_ns": (counted.cost(original), "the cost of the hosts as they were handed out"),
        "median_ns": (random, "the median cost of random orders"),
        "worst_ns": (counted.cost(decisions.worst), "the cost of the worst order"),
        "time_ns": (counted.time(order), "the time of an allreduce in the order"),
    }
    wrong = False
    for name, (right, what) in figures.items():
        if (mine := getattr(decisions, name)) != right:
            wrong = True
            yield f"$.decisions.{name}", mine, f"{right}, {what}"
    if wrong:
        return
    own, handed = (decisions.cost_ns, decisions.tie_ns), (decisions.original_ns, counted.tie(original))
    if own > handed:
        then = f", then {handed[1]}" if own[0] == handed[0] else ""
        yield "$.decisions.order", f"a cost of {own[0]} ns", f"at most {handed[0]} ns{then}, as handed out"
    least = max(decisions.cost_ns, decisions.original_ns, decisions.median_ns)
    if decisions.worst_ns < least:
        yield "$.decisions.worst", f"a cost of {decisions.worst_ns} ns", f"at least {least} ns, as other orders have"
