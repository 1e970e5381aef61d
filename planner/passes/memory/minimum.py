"""The least feasible budget: a plan of little peak and a bound, and where they differ the 0-1 program of
`checkpoint.py` with M as the minimised variable."""

from __future__ import annotations

import math
from dataclasses import dataclass

from treadle.planner.passes.memory.bound import least_bytes
from treadle.planner.passes.memory.formulation.checkpoint import formulate
from treadle.planner.passes.memory.formulation.readout import hint, schedule_of
from treadle.planner.passes.memory.formulation.switches import DependencySet, Switches
from treadle.planner.passes.memory.lower import RecomputeSchedule, prune
from treadle.planner.passes.memory.methods.least_peak import least_peak_schedule
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.simulate import simulated
from treadle.planner.solver import solve

NEAR = 0.01
"""Relative distance of bound and plan at which no solve is needed."""
SECONDS = 30.0
"""Limit of the solve in wall clock, since an error message waits for it."""


@dataclass(frozen=True)
class Minimum:
    """`budget_bytes` has a plan (`schedule`); below `proved_bytes` there is none. They meet when the solve finished,
    and are within `NEAR` when none was needed."""

    budget_bytes: int | None
    proved_bytes: int
    schedule: RecomputeSchedule | None


def least_budget(
    problem: MemoryProblem,
    *,
    dependency_set: DependencySet = "entering",
    backend: str = "highs",
    time_limit_s: float | None = None,
) -> Minimum:
    """The least budget with a plan, whatever its time; sizes are exact."""
    proved = least_bytes(problem)
    schedules = []
    if dependency_set == "entering":
        schedules.append(least_peak_schedule(problem))
        peak = simulated(problem, schedules[0]).peak_bytes
        if peak <= proved * (1 + NEAR):
            return Minimum(peak, proved, schedules[0])
    exact = Switches(cuts=False, integral=backend == "cp_sat")
    formulation = formulate(problem, dependency_set=dependency_set, switches=exact, minimize_peak=True)
    for schedule in schedules:
        hint(formulation, schedule)
    limit = SECONDS if time_limit_s is None else min(SECONDS, time_limit_s)
    solution = solve(formulation.model, backend=backend, gap=0.0, time_limit_s=limit)
    if solution.found:
        schedules.append(prune(problem, schedule_of(formulation, solution)))
    if solution.bound is not None:
        proved = max(proved, problem.base_bytes + math.ceil(solution.bound * formulation.units.bytes_ - 0.5))
    plans = [(simulated(problem, schedule).peak_bytes, schedule) for schedule in schedules]
    if not plans:
        return Minimum(None, proved, None)
    peak, schedule = min(plans, key=lambda plan: plan[0])
    return Minimum(peak, min(proved, peak), schedule)
