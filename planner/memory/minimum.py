"""The least feasible budget: the program of `checkpoint.py` with M as the minimised variable."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.memory.bound import least_bytes
from planner.memory.checkpoint import DependencySet, Trims, formulate, schedule_of
from planner.memory.lower import Schedule, lower, prune
from planner.memory.problem import MemoryProblem
from planner.memory.simulate import simulate
from planner.solver import Progress, solve


@dataclass(frozen=True)
class Minimum:
    """`budget_bytes` has a plan (`schedule`); below `proved_bytes` there is none. They meet when the solve finished."""

    budget_bytes: int | None
    proved_bytes: int
    schedule: Schedule | None


def least_budget(
    problem: MemoryProblem,
    *,
    dependency_set: DependencySet = "entering",
    backend: str = "highs",
    gap: float = 0.0,
    time_limit_s: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Minimum:
    """The least budget with a plan, whatever its time. Sizes are exact, never rounded."""
    exact = Trims(round_sizes=False)
    formulation = formulate(problem, dependency_set=dependency_set, trims=exact, minimize_peak=True)
    solution = solve(formulation.model, backend=backend, gap=gap, time_limit_s=time_limit_s, on_progress=on_progress)
    floor = least_bytes(problem)
    unit, base = formulation.byte_unit, problem.base_bytes
    proved = floor if solution.bound is None else max(floor, base + math.ceil(solution.bound * unit - 0.5))
    if not solution.found:
        return Minimum(None, proved, None)
    schedule = prune(problem, schedule_of(formulation, solution))
    peak = simulate(problem, lower(problem, schedule)).peak_bytes
    return Minimum(peak, min(proved, peak), schedule)
