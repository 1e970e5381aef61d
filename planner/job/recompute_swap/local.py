"""Local search over recompute sets: recompute what delays compute, keep or copy what costs more than it saves.

Every step starts from the copies of the best plan that delay compute (critical.py). The tensors that they move are
ranked by the delay that they are part of over the price of recomputing them; the first 1, 2, 4, .. of them become a
set of the program (sets.py). Conversely, repeated runs are removed, the longest first. Whatever is faster
is the next start; the search ends when nothing is, or at the limit of evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from treadle.planner.documents.trace import OpRun
from treadle.planner.graph.unrolling import without_useless
from treadle.planner.job.recompute_swap.critical import delays
from treadle.planner.job.recompute_swap.scoring import QuickPlan, Scorer
from treadle.planner.job.recompute_swap.sets import OpSequence, RunValue

SIZES = (32, 16, 8, 4, 2, 1)
"""Numbers of changes that are tried at once."""
STARTS = 3
"""Stretches of the ranking that are tried for each size."""


def improve(scorer: Scorer, start: QuickPlan, evaluations: int, stop: Callable[[], bool]) -> QuickPlan:
    """The best program found from `start` within this number of evaluations."""
    left = evaluations
    while left > 0 and not stop():
        program = OpSequence(scorer.trace, start.runs)
        for runs, name in _neighbours(program, start):
            if left <= 0 or stop():
                return start
            left -= 1
            found = scorer.score(runs, name)
            if found is not None and found.time_ns < start.time_ns:
                start = found
                break
        else:
            return start
    return start


def _neighbours(program: OpSequence, plan: QuickPlan) -> Iterator[tuple[tuple[OpRun, ...], str]]:
    ranked = _worth_recomputing(program, plan)
    costly = sorted(program.repeated, key=lambda at: (-(program.calls[at].time_ns or 0), at))
    for size in SIZES:
        for begin in range(0, STARTS * size, size):
            if begin < len(ranked):
                yield program.with_set(ranked[begin : begin + size]), "critical"
            if begin < len(costly):
                taken = frozenset(costly[begin : begin + size])
                kept = tuple(run for at, run in enumerate(program.runs) if at not in taken)
                yield without_useless(program.trace, kept), "kept"


def _worth_recomputing(program: OpSequence, plan: QuickPlan) -> list[RunValue]:
    delayed = delays(plan)
    worth = []
    for value in program.gaps:
        delay = delayed.get(program.instance(value), 0)
        if delay:
            worth.append((-delay / max(1, program.price_ns(value)), value))
    return [value for _, value in sorted(worth)]
