"""`torch.autograd.graph.save_on_cpu`: every saved activation is copied to the host and back on the compute stream.

Nothing overlaps: the operator after the last forward use waits for the copy out, the backward operator for the copy in,
which starts when the operator before it has ended. Each backward operator gets its own copy; adjacent operators share
one, like the parts of one autograd node. Copies run at the machine's bandwidth, that of pinned memory; without
`pin_memory=True` they are slower.
"""

from __future__ import annotations

from benchmarks.swap.peers.peer import Labels, Outcome, saved_activations
from benchmarks.swap.peers.trips import Fetch, Trip, groups, outcome
from treadle.planner.passes.swap.problem import SwapProblem


def plan(problem: SwapProblem, labels: Labels) -> Outcome:
    """The plan."""
    trips = [
        Trip(
            saved.tensor,
            saved.forward[-1],
            saved.forward[-1] + 1,
            tuple(Fetch(first, first, last) for first, last in groups(saved.backward)),
        )
        for saved in saved_activations(problem, labels)
    ]
    return outcome(problem, trips)
