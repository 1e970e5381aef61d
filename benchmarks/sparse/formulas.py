"""The costs of "Zen: Near-Optimal Sparse Tensor Synchronization for Distributed DNN Training", sections 3.2 and 4, as
published: what the busiest participant receives, over the bytes of the dense gradient. Bandwidth only.

The paper prints the formulas of Sparse PS, Balanced Parallelism and the incremental stages; those of AGsparse, SparCML,
OmniReduce and Zen follow from its text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

WORD_BITS = 32


@dataclass(frozen=True)
class Shape:
    """One gradient on `participants` participants. `density(m)` is that of the sum of m; the skewness is that of one
    participant and of the sum over as many even ranges; `blocks` are the shares of non-zero blocks in the fullest of
    them, and `imbalance` that of hashed parts, both as the skewness is."""

    participants: int
    density: Callable[[int], float]
    skewness: tuple[float, float]
    blocks: tuple[float, float]
    imbalance: tuple[float, float] = (1.0, 1.0)


def dense(shape: Shape) -> float:
    return 2 * _others(shape)


def agsparse(shape: Shape) -> float:
    return 2 * (shape.participants - 1) * shape.density(1)


def sparcml(shape: Shape) -> float:
    return 2 * sum(shape.density(2**stage) for stage in range(ceil(log2(shape.participants))))


def ring_centralized(shape: Shape) -> float:
    return 2 * sum(shape.density(m) for m in range(1, shape.participants))


def sparse_ps(shape: Shape) -> float:
    """With the skewness of the sum in the pull, where the paper has that of one participant: the density of a part
    would otherwise exceed 1."""
    push, pull = shape.skewness
    return 2 * _others(shape) * (push * shape.density(1) + pull * shape.density(shape.participants))


def sparse_ps_broadcast(shape: Shape) -> float:
    """Sums are broadcast along binomial trees."""
    n = shape.participants
    return 2 * _others(shape) * shape.skewness[0] * shape.density(1) + 2 * ceil(log2(n)) * shape.density(n)


def omnireduce(shape: Shape) -> float:
    return _others(shape) * sum(shape.blocks)


def ring_parallel(shape: Shape) -> float:
    n = shape.participants
    return 2 / n * sum(shape.density(m) for m in range(1, n)) + _pulled(shape)


def hierarchy_parallel(shape: Shape) -> float:
    stages = range(ceil(log2(shape.participants)))
    return sum(shape.density(2**stage) / 2**stage for stage in stages) + _pulled(shape)


def balanced(shape: Shape) -> float:
    return 2 * _others(shape) * (shape.density(1) + shape.density(shape.participants))


def zen(shape: Shape) -> float:
    push, pull = shape.imbalance
    received = 2 * shape.density(1) * push + shape.density(shape.participants) * pull + 1 / WORD_BITS
    return _others(shape) * received


def lower_bound(shape: Shape) -> float:
    return shape.density(shape.participants - 1)


def _others(shape: Shape) -> float:
    return (shape.participants - 1) / shape.participants


def _pulled(shape: Shape) -> float:
    return 2 * _others(shape) * shape.density(shape.participants)


FORMULAS = {
    "dense": dense,
    "AGsparse": agsparse,
    "SparCML": sparcml,
    "ring, centralized": ring_centralized,
    "Sparse PS": sparse_ps,
    "Sparse PS, broadcast": sparse_ps_broadcast,
    "OmniReduce": omnireduce,
    "ring, parallel": ring_parallel,
    "hierarchy, parallel": hierarchy_parallel,
    "BP": balanced,
    "Zen": zen,
    "lower bound": lower_bound,
}
