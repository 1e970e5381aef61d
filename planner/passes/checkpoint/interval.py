"""How many iterations apart checkpoints are, so that what they take and what failures waste is least."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, isqrt

from treadle.planner.passes.checkpoint.problem import CheckpointProblem

DAY_NS = 86_400 * 10**9
MOST_INTERVAL_NS = 2**61


def failures_per_ns(problem: CheckpointProblem) -> Fraction:
    """The rate at which the job fails, exactly that of the document."""
    return Fraction(problem.failures_per_day) / DAY_NS


def best_every(problem: CheckpointProblem, overflow_ns: int) -> int:
    """`least_every`, but no longer than documents can have."""
    return min(least_every(problem, overflow_ns), max(1, MOST_INTERVAL_NS // problem.iteration_ns))


def least_every(problem: CheckpointProblem, overflow_ns: int) -> int:
    """The n >= 1 with the least overflow / n + rate n T^2 / 2, T the iteration; the smallest of several. Without
    overflow or failures 1.

    One more iteration is no better where overflow / (n (n + 1)) <= rate T^2 / 2.
    """
    rate = failures_per_ns(problem)
    if not overflow_ns or not rate:
        return 1
    product = ceil(2 * overflow_ns / (rate * problem.iteration_ns**2))  # the least n (n + 1)
    every = (isqrt(4 * product - 3) + 1) // 2  # the least or one less
    every += every * (every + 1) < product
    return every - (every > 1 and (every - 1) * every >= product)
