"""How well measured costs show where hosts stand (PLink, "Physical Affinity Inference Accuracy")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class AffinityAccuracy(NamedTuple):
    """`correct` of `compared` triplets: an observer, and two hosts of which one stands nearer to it."""

    correct: int
    compared: int


def affinity_accuracy(costs: Sequence[Sequence[float]], positions: Sequence[Sequence[int]]) -> AffinityAccuracy:
    """How many triplets the costs order as the positions do.

    A position names region, datacenter, cluster, row, rack and host, or the first of these; of two hosts the one is
    nearer to the observer whose position has more places in common with its, from the first place on. Equal costs of
    hosts that are not equally near count as wrong.
    """
    import numpy as np

    matrix, n = np.asarray(costs, dtype=float), len(positions)
    correct = compared = 0
    for observer in range(n):
        others = [host for host in range(n) if host != observer]
        common = np.array([shared_places(positions[observer], positions[host]) for host in others])
        cost = matrix[others, observer]
        nearer = common[:, None] > common[None, :]
        compared += int(nearer.sum())
        correct += int((nearer & (cost[:, None] < cost[None, :])).sum())
    return AffinityAccuracy(correct, compared)


def shared_places(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
