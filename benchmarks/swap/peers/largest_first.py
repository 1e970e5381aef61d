"""Saved activations leave largest first until the rest fits, as in torchtitan's `sac_and_offload`.

Each leaves after its last forward use. It comes back early enough: the fetch is issued where the operators that are
left before its use take at least as long as the copy (torch's `activation_reload_prefetch`).
"""

from __future__ import annotations

import bisect
from itertools import accumulate

from benchmarks.swap.peers.peer import Labels, Outcome, Saved, saved_activations
from benchmarks.swap.peers.trips import Fetch, Trip, outcome
from treadle.planner.passes.swap.problem import SwapProblem


def plan(problem: SwapProblem, labels: Labels) -> Outcome:
    """The plan of the fewest activations that leave, found by bisection."""
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
    """`ends[i]` is when operator i starts if nothing waits."""
    needed, leave = saved.backward[0], saved.forward[-1]
    copy = problem.machine.in_ns(problem.tensors[saved.tensor].bytes)
    issue = max(leave + 1, bisect.bisect_right(ends, ends[needed] - copy) - 1)
    return Trip(saved.tensor, leave, None, (Fetch(min(issue, needed), needed, saved.backward[-1]),))
