"""The optimum of a small memory problem, by the exact dynamic program."""

from __future__ import annotations

import msgspec

from tests.oracles.exact_memory import optima
from treadle.planner.passes.memory.problem import MemoryProblem


def optimum(problem: MemoryProblem, dependency_set: str = "entering") -> int | None:
    """Least time of any plan within the budget, None without a plan."""
    entering, leaving = optima(msgspec.to_builtins(problem))
    return leaving if dependency_set == "leaving" else entering
