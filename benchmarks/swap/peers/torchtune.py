"""torchtune's `OffloadActivations` with streams (`torchtune/training/_activation_offloading.py`).

Saved activations of at least `min_offload_size` bytes are copied out after their last forward use on a stream of their
own; for each, the compute stream waits for the one `max_fwd_stash_size` before it. Activations of a backward operator
are fetched while the operator before it runs. Inputs of the first backward operator whose copy is not finished stay.
"""

from __future__ import annotations

from benchmarks.swap.peers.peer import Labels, Outcome, saved_activations
from benchmarks.swap.peers.trips import Fetch, Trip, groups, outcome
from treadle.planner.passes.swap.problem import SwapProblem

MIN_OFFLOAD_SIZE = 1024
MAX_FWD_STASH_SIZE = 5


def plan(
    problem: SwapProblem,
    labels: Labels,
    min_offload_size: int = MIN_OFFLOAD_SIZE,
    max_fwd_stash_size: int = MAX_FWD_STASH_SIZE,
) -> Outcome:
    """The plan, by default with torchtune's own settings."""
    large = [s for s in saved_activations(problem, labels) if problem.tensors[s.tensor].bytes >= min_offload_size]
    large.sort(key=lambda saved: (saved.forward[-1], saved.tensor))
    first = min(labels.backward, default=None)
    trips = []
    for at, saved in enumerate(large):
        stashed = at + max_fwd_stash_size
        if stashed >= len(large) and saved.backward[0] == first:
            continue
        wait = large[stashed].forward[-1] + 1 if stashed < len(large) else first
        fetches = tuple(Fetch(max(0, begin - 1), begin, last) for begin, last in groups(saved.backward))
        trips.append(Trip(saved.tensor, saved.forward[-1], wait, fetches))
    return outcome(problem, trips)
