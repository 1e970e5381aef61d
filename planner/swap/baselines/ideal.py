"""The upper bound: memory without end, so that the operators follow each other without a copy (SwapAdvisor, 5.1)."""

from __future__ import annotations

from planner.swap.baselines.trips import outcome
from planner.swap.problem import SwapProblem


def ideal_ns(problem: SwapProblem) -> int:
    """The time of all operators, one after the other."""
    return problem.ideal_ns


def whole_bytes(problem: SwapProblem) -> int:
    """The device memory in which nothing but inputs is copied: plain PyTorch's, in the graph's order."""
    return outcome(problem, ()).needed_bytes
