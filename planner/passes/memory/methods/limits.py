"""Windows of stages, and limits of the work on programs over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.solver import Model, Solution, solve

Window = range
"""Consecutive stages; stage t = 1..K ends with backward node t - 1."""


@dataclass(frozen=True)
class SolveLimits:
    """Limits: `windows` of one program, `nodes` of branch and bound and `seconds_each` of one solve, `steps` solves in
    all. A solve stops at relative gap `gap`."""

    windows: int = 64
    nodes: int = 2000
    steps: int = 80
    gap: float = 1e-4
    seconds_each: float = 60.0
    workers: int = 1


LIMITS = SolveLimits()


class Account:
    """What is left of the limits."""

    def __init__(self, limits: SolveLimits) -> None:
        self.limits = limits
        self.steps = limits.steps

    def spent(self) -> bool:
        return self.steps <= 0

    def solve(self, model: Model, share: float = 1.0) -> Solution:
        """Solve `model` with a share of the limits of one solve. Raises LimitError when the solver fails or is
        interrupted."""
        self.steps -= 1
        limits = self.limits
        return solve(
            model,
            backend="highs",
            gap=limits.gap,
            node_limit=max(1, round(share * limits.nodes)),
            time_limit_s=max(0.1, share * limits.seconds_each),
            workers=limits.workers,
        )


def doubling(first: int, last: int) -> Iterator[int]:
    """first, 2 first, 4 first, .. below `last`, then `last`."""
    count = min(first, last)
    while count < last:
        yield count
        count *= 2
    yield last


def cut(problem: MemoryProblem, count: int) -> list[Window]:
    """Stages 1..K in at most `count` windows that read about equal bytes of forward outputs."""
    stages = len(problem.bwd)
    weight = [1.0] * stages
    total = sum(node.out_bytes for node in problem.fwd) / stages or 1.0
    for k, back in enumerate(problem.bwd):
        weight[k] += sum(problem.fwd[i].out_bytes for i in back.impls[0].needs) / total
    share, passed = sum(weight) / count, 0.0
    starts: list[int] = []
    for k in range(stages):
        if passed >= share * len(starts):
            starts.append(k + 1)
        passed += weight[k]
    ends = [*starts[1:], stages + 1]
    return [range(first, end) for first, end in zip(starts, ends, strict=True)]
