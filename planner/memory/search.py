"""The search for the fastest plan within a budget: heuristics first, then the 0-1 program started from their best."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.errors import InfeasibleError, LimitError
from planner.memory.bound import ONCE, least_bytes, least_time, solver_argument
from planner.memory.checkpoint import DependencySet, formulate, hint, schedule_of
from planner.memory.heuristics import best_heuristic
from planner.memory.lower import Schedule, lower, prune, store_all
from planner.memory.minimum import Minimum, least_budget
from planner.memory.problem import MemoryProblem
from planner.memory.simulate import simulate
from planner.scalars import format_bytes
from planner.solver import Progress, Status, relative_gap, solve

OnProgress = Callable[[Progress], None] | None


@dataclass(frozen=True)
class MemoryOptions:
    """`gap` is where the solver may stop; `time_limit_s` is the wall-clock safety net of each solve."""

    dependency_set: DependencySet = "entering"
    hold_gradients: bool = False
    gap: float = 0.01
    time_limit_s: float | None = 120.0
    solver: str = "highs"
    seed: int = 0
    workers: int = 1


@dataclass(frozen=True)
class Found:
    """The best schedule, pruned, and what is proved about better ones: none takes less than `bound_ns`."""

    schedule: Schedule
    time_ns: int
    method: str
    bound_ns: int
    argument: str = ONCE
    solver_status: str | None = None
    limit_fired: bool = False
    interrupted: bool = False


def search(problem: MemoryProblem, options: MemoryOptions, on_progress: OnProgress = None) -> Found:
    """The fastest schedule found whose exact peak is within the budget.

    Raises InfeasibleError naming the least feasible budget where there is provably none, LimitError when the limits
    or Ctrl-C ended the search before there was one.
    """
    floor = least_time(problem)
    if problem.budget_bytes < least_bytes(problem):
        raise InfeasibleError(_least_feasible(problem, options, on_progress)[0])
    start = best_heuristic(problem) if options.dependency_set == "entering" else None
    best = None if start is None else Found(start, _time(problem, start), "heuristic", floor)
    if best and best.time_ns == floor:
        return best
    program = formulate(problem, dependency_set=options.dependency_set)
    if start is not None:
        hint(program, start)
    try:
        solution = solve(
            program.model,
            backend=options.solver,
            gap=options.gap,
            time_limit_s=options.time_limit_s,
            seed=options.seed,
            workers=options.workers,
            on_progress=_in_ns(on_progress, program.time_unit, best),
        )
    except LimitError as ended:
        if best is None:
            raise
        return replace(best, solver_status="none", interrupted="interrupted" in str(ended))
    if solution.found:
        schedule = prune(problem, schedule_of(program, solution))
        time = _time(problem, schedule)
        if best is None or time < best.time_ns:
            best = Found(schedule, time, "checkpoint", floor)
    elif best is None and solution.status is Status.INFEASIBLE:
        # Rounded sizes can make a budget fail by a hair; the least feasible budget is computed on exact ones.
        message, minimum = _least_feasible(problem, options, on_progress)
        if minimum.schedule is None or minimum.budget_bytes is None or minimum.budget_bytes > problem.budget_bytes:
            raise InfeasibleError(message)
        best = Found(minimum.schedule, _time(problem, minimum.schedule), "least-budget", floor)
    if best is None:
        spent = "" if options.time_limit_s is None else f" in {options.time_limit_s:g} s"
        raise LimitError(
            f"no plan within {format_bytes(problem.budget_bytes)} was found{spent}; raise --time-limit or --budget"
        )
    best = replace(
        best,
        solver_status=str(solution.status),
        limit_fired=solution.limit_fired is not None,
        interrupted=solution.interrupted,
    )
    if solution.bound is None:
        return best
    bound = math.floor(solution.bound * program.time_unit + 1e-6)
    if solution.status is Status.OPTIMAL and abs(bound - best.time_ns) <= 1e-6 * best.time_ns:
        bound = best.time_ns
    # A plan below the bound is none of the program's: its rows round sizes and bound L_i. Then only the floor holds.
    proved = floor < bound <= best.time_ns
    return replace(best, bound_ns=bound, argument=solver_argument(program.rounded_to)) if proved else best


def _time(problem: MemoryProblem, schedule: Schedule) -> int:
    return simulate(problem, lower(problem, schedule)).time_ns


def _in_ns(on_progress: OnProgress, unit: float, start: Found | None) -> OnProgress:
    """Progress in nanoseconds, the heuristic plan counted as an incumbent."""
    if on_progress is None:
        return None
    report = on_progress

    def scaled(progress: Progress) -> None:
        known = [] if start is None else [float(start.time_ns)]
        if progress.incumbent is not None:
            known.append(progress.incumbent * unit)
        incumbent = min(known, default=None)
        bound = None if progress.bound is None else progress.bound * unit
        report(Progress(incumbent, bound, relative_gap(incumbent, bound), progress.elapsed_s))

    return scaled


def _least_feasible(problem: MemoryProblem, options: MemoryOptions, on_progress: OnProgress) -> tuple[str, Minimum]:
    minimum = least_budget(
        problem,
        dependency_set=options.dependency_set,
        backend=options.solver,
        time_limit_s=options.time_limit_s,
    )
    whole = simulate(problem, lower(problem, store_all(problem))).peak_bytes

    def said(count: int) -> str:
        return f"{format_bytes(count)} ({count} bytes, {count / max(1, whole):.3g}x of store-all)"

    asked = f"budget {said(problem.budget_bytes)}"

    if minimum.budget_bytes is None:
        return f"{asked} is infeasible: no plan is below {said(minimum.proved_bytes)}", minimum
    if minimum.budget_bytes == minimum.proved_bytes:
        return f"{asked} is below the least feasible {said(minimum.budget_bytes)}", minimum
    return (
        f"{asked} is infeasible: no plan is below {said(minimum.proved_bytes)}, the smallest one found needs "
        f"{said(minimum.budget_bytes)}",
        minimum,
    )
