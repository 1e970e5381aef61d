"""The schemes that are predicted to be best, measured.

Each gradient is exchanged in isolation by a few schemes, priced for that: a whole alpha and not a share of it. Then all
gradients together, by the fastest of these schemes, by those of least price, and dense: messages that are joined may
favour another scheme, and no plan is taken that is slower than these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Sequence

from msgspec.structs import replace

from treadle.planner.documents.tuned import Tuned
from treadle.planner.passes.sparse.decided import allowed, by_schemes, decided
from treadle.planner.passes.sparse.decisions import SchemeCost, SparseDecisions
from treadle.planner.passes.sparse.rounds import exchange
from treadle.planner.passes.sparse.schemes import BY_NAME, DENSE
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import Measuring, Shortlist, measure_in_turns
from treadle.planner.search.top import Predicted

MODEL = "prices of sparse schemes"
"""What predicts, as plans and reports call it."""
SCHEME_OF = "scheme of "
TOGETHER = "schemes of all gradients"
CHEAPEST, FASTEST, ALL_DENSE = "cheapest schemes", "fastest schemes in isolation", "all dense"


def tuned(
    decisions: SparseDecisions, measuring: Measuring[SparseDecisions], clock: Clock
) -> tuple[SparseDecisions, tuple[Tuned, ...]]:
    """The schemes that took least time instead of those of `decisions`, and the records; where Ctrl-C ends the
    measurement, `decisions` and none."""
    records = measure_in_turns(MODEL, [*_in_isolation(decisions)], measuring, clock)
    if not records:
        return decisions, ()
    fastest = by_schemes(decisions, [each.chosen for each in records])
    plans = {CHEAPEST: decisions, FASTEST: fastest, ALL_DENSE: by_schemes(decisions, [DENSE.name] * len(records))}
    distinct = dict[tuple[str, ...], str]()
    for name, plan in plans.items():
        distinct.setdefault(_schemes(plan), name)
    if len(records) == 1 or len(distinct) == 1:
        return replace(fastest, measured=True), tuple(records)
    choices = [plans[name] for name in distinct.values()]
    predicted = [Predicted(name, plans[name].time_ns) for name in distinct.values()]
    together = dataclasses.replace(measuring, top=len(choices))
    for last in measure_in_turns(MODEL, [Shortlist(TOGETHER, predicted, choices)], together, clock):
        return replace(plans[last.chosen], measured=True), (*records, last)
    return decisions, ()


def _in_isolation(decisions: SparseDecisions) -> Iterator[Shortlist[SparseDecisions]]:
    """The allowed schemes of each gradient, in a problem of its own."""
    problem = decisions.problem
    for gradient in problem.gradients:
        one = decided(replace(problem, gradients=(gradient,)), decisions.sums)
        costs = _distinct(decisions, one.gradients[0].costs)
        yield Shortlist(
            SCHEME_OF + gradient.name,
            [Predicted(each.scheme, each.time_ns) for each in costs],
            [by_schemes(one, [each.scheme]) for each in costs],
        )


def _distinct(decisions: SparseDecisions, costs: Sequence[SchemeCost]) -> list[SchemeCost]:
    """Those of allowed schemes; of schemes that have the same messages between as many participants the first."""
    machines, found = decisions.problem.machines, dict[Hashable, SchemeCost]()
    for cost in costs:
        scheme = BY_NAME[cost.scheme]
        if allowed(scheme, machines, decisions.sums):
            found.setdefault((exchange(scheme, machines), scheme.balance, scheme.push, scheme.pull), cost)
    return [*found.values()]


def _schemes(decisions: SparseDecisions) -> tuple[str, ...]:
    return tuple(each.scheme for each in decisions.gradients)
