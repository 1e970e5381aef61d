"""vDNN-conv ("vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient Neural Network Design", section 3).

In the forward pass the input of each convolution is evicted when its last forward user has ended, while the next
operator runs; the one after that waits for the copy. In the backward pass the input of the next convolution is fetched
when the backward pass of the convolution before it begins.
"""

from __future__ import annotations

from benchmarks.swap.peers.peer import Labels, Outcome, saved_activations
from benchmarks.swap.peers.trips import Fetch, Trip, outcome
from treadle.planner.passes.swap.problem import SwapProblem


def plan(problem: SwapProblem, labels: Labels) -> Outcome:
    """The plan; without convolutions nothing is evicted."""
    layers = sorted(labels.backward & labels.convolutions)
    trips = []
    for saved in saved_activations(problem, labels):
        if labels.convolutions.isdisjoint(saved.forward[1:]):
            continue
        needed, leave = saved.backward[0], saved.forward[-1]
        issue = max((layer for layer in layers if layer < needed), default=min(labels.backward))
        trips.append(Trip(saved.tensor, leave, leave + 2, (Fetch(issue, needed, saved.backward[-1]),)))
    return outcome(problem, trips)
