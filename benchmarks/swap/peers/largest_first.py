"""Saved activations are evicted largest first until the rest fits, as in torchtitan's `sac_and_offload`.

Each is evicted after its last forward use. The fetch is issued early enough: the operators that remain before its use
take at least as long as the copy (torch's `activation_reload_prefetch`).
"""

from __future__ import annotations

import bisect
from itertools import accumulate

from benchmarks.swap.peers.peer import Labels, Outcome, Saved, saved_activations
from benchmarks.swap.peers.trips import Fetch, Trip, outcome
from treadle.planner.passes.swap.problem import SwapProblem


def plan(problem: SwapProblem, labels: Labels) -> Outcome:
    """The plan that evicts the fewest activations, found by bisection."""
    found = saved_activations(problem, labels)
    found.sort(key=lambda saved: (-problem.tensors[saved.tensor].bytes, saved.tensor))
    ends = list(accumulate((op.time_ns for op in problem.ops), initial=0))
    trips = [_trip(problem, saved, ends) for saved in found]
    best = outcome(problem, trips)
    if best.decisions is None:
        return best
    too_few, enough = -1, len(trips)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        tried = outcome(problem, trips[:middle])
        if tried.decisions is None:
            too_few = middle
        else:
            enough, best = middle, tried
    return best


def _trip(problem: SwapProblem, saved: Saved, ends: list[int]) -> Trip:
    """`ends[i]` is the start of operator i if nothing waits."""
    needed, leave = saved.backward[0], saved.forward[-1]
    copy = problem.machine.in_ns(problem.tensors[saved.tensor].bytes)
    issue = max(leave + 1, bisect.bisect_right(ends, ends[needed] - copy) - 1)
    return Trip(saved.tensor, leave, None, (Fetch(min(issue, needed), needed, saved.backward[-1]),))
