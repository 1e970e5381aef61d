"""The methods that solve a memory problem behind one function: their inputs and answers are data.

    heuristic  segments or eviction, then refilling                      (quick.py)
    segments   repeated blocks solved once and composed                  (compose.py)
    windows    large-neighbourhood search over windows of stages         (windows.py)
    full       the 0-1 program of all stages, started from the best plan (checkpoint.py)
    retention  retention intervals in CP-SAT                             (retention.py)
    rounding   the linear relaxation of the 0-1 program, rounded         (rounding.py)
    bound      no plan, a lower bound only                               (relaxation.py)

An `Attempt` is one of them at one effort; it runs in this process or in one of its own (race.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.memory.formulation.checkpoint import formulate
from treadle.planner.passes.memory.formulation.readout import hint, schedule_of
from treadle.planner.passes.memory.formulation.switches import DependencySet, Switches
from treadle.planner.passes.memory.lower import RecomputeSchedule
from treadle.planner.passes.memory.methods import retention, rounding
from treadle.planner.passes.memory.methods.compose import solve_segments
from treadle.planner.passes.memory.methods.limits import SolveLimits
from treadle.planner.passes.memory.methods.quick import solve_quick
from treadle.planner.passes.memory.methods.windows import solve_windows
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.relaxation import lower_bound
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.solver import Progress, Status, solve
from treadle.planner.solver.interrupt import stop_on_signals

NEVER_S = 1e6

Method = Literal["auto", "heuristic", "segments", "windows", "full", "retention", "rounding"]
OnBetter = Callable[[RecomputeSchedule], None]
OnBound = Callable[[Bound], None]


@dataclass(frozen=True)
class MemoryOptions:
    """`gap` is where the search may stop; `time_limit_s` is its wall-clock safety net, not part of what is decided.

    families: the families of implementations that a plan may use, None for all
    (`treadle.planner.passes.memory.variants`). recompute: False leaves recomputation out. reserve_bytes: part of the
    budget that is not used, for fragmentation or the optimizer's state. exact_local, literal_products: rows of the 0-1
    program written in their long forms, which have the same plans, for tests of the short ones.
    """

    method: Method = "auto"
    families: tuple[str, ...] | None = None
    recompute: bool = True
    dependency_set: DependencySet = "entering"
    hold_gradients: bool = False
    reserve_bytes: int = 0
    exact_local: bool = False
    literal_products: bool = False
    gap: float = 0.01
    time_limit_s: float | None = 120.0
    solver: str = "highs"
    seed: int = 0
    workers: int = 1


@dataclass(frozen=True)
class Attempt:
    """A method at an effort: 1, 2, .. is more and more work, the same for equal inputs."""

    method: str
    effort: int = 1

    def __str__(self) -> str:
        return self.method if self.effort == 1 else f"{self.method} {self.effort}"


@dataclass(frozen=True)
class Answer:
    """How an attempt ended. `infeasible`: it is proved that no plan fits, in the scope of its bound."""

    schedule: RecomputeSchedule | None = None
    bound: Bound | None = None
    status: str | None = None
    infeasible: bool = False
    limit_fired: bool = False
    failure: str = ""
    """Why the method failed."""


def attempt(
    job: Attempt,
    problem: MemoryProblem,
    start: RecomputeSchedule | None,
    options: MemoryOptions,
    on_better: OnBetter = lambda schedule: None,
    on_bound: OnBound = lambda bound: None,
) -> Answer:
    """Make one attempt from `start`, the best plan known; the callbacks get its plans and bounds as it finds them."""
    match job.method:
        case "heuristic":
            return Answer(solve_quick(problem, on_better))
        case "full":
            return _full(problem, start, options, on_bound)
        case "retention":
            return _retention(job, problem, start, options, on_better, on_bound)
        case "rounding":
            rounded = rounding.solve_rounding(
                problem, job.effort, seed=options.seed, time_limit_s=options.time_limit_s, on_better=on_better
            )
            return Answer(rounded.schedule, limit_fired=rounded.limit_fired)
        case "segments":
            return Answer(solve_segments(problem, job.effort, on_better))
        case "windows":
            return Answer(solve_windows(problem, start, _limits(job, options), on_better))
        case "bound":
            try:
                return Answer(bound=lower_bound(problem, _limits(job, options), start, on_bound))
            except InfeasibleError:
                return Answer(infeasible=True)
    raise ValueError(job.method)


def _full(problem: MemoryProblem, start: RecomputeSchedule | None, options: MemoryOptions, on_bound: OnBound) -> Answer:
    switches = Switches(
        integral=options.solver == "cp_sat",
        local="long" if options.exact_local else "exact",
        literal_products=options.literal_products,
    )
    program = formulate(problem, dependency_set=options.dependency_set, switches=switches)
    if start is not None:
        hint(program, start)

    leaving = options.dependency_set == "leaving"

    def proved(bound: float) -> Bound:
        return Bound(
            math.floor(bound * program.time_unit + 1e-6),
            Argument("solved leaving" if leaving else "solved"),
            "forward order, reads left" if leaving else "forward order",
        )

    def on_progress(progress: Progress) -> None:
        if progress.bound is not None:
            on_bound(proved(progress.bound))

    try:
        solution = solve(
            program.model,
            backend=options.solver,
            gap=options.gap,
            time_limit_s=options.time_limit_s,
            seed=options.seed,
            workers=options.workers,
            on_progress=on_progress,
        )
    except LimitError as ended:
        return Answer(status="none", failure=str(ended))
    return Answer(
        schedule=schedule_of(program, solution) if solution.found else None,
        bound=None if solution.bound is None else proved(solution.bound),
        status=str(solution.status),
        infeasible=solution.status is Status.INFEASIBLE,
        limit_fired=solution.limit_fired is not None,
    )


def _retention(
    job: Attempt,
    problem: MemoryProblem,
    start: RecomputeSchedule | None,
    options: MemoryOptions,
    on_better: OnBetter,
    on_bound: OnBound,
) -> Answer:
    def proved(bound_ns: int) -> Bound:
        return Bound(bound_ns, Argument("retention"), "forward order")

    with stop_on_signals() as stop:
        found = retention.solve_retention(
            problem,
            start,
            job.effort,
            gap=options.gap,
            seed=options.seed,
            workers=options.workers,
            time_limit_s=options.time_limit_s,
            stop=stop,
            on_better=on_better,
            on_bound=lambda bound_ns: on_bound(proved(bound_ns)),
        )
    return Answer(
        schedule=found.schedule,
        bound=None if found.bound_ns is None else proved(found.bound_ns),
        infeasible=found.infeasible,
        limit_fired=found.limit_fired,
    )


def _limits(job: Attempt, options: MemoryOptions) -> SolveLimits:
    """Limits in nodes and steps; the only clock is that of the whole search, which records that it fired."""
    if job.method == "windows":
        windows, nodes, steps = ((16, 200, 12), (64, 1000, 40), (256, 4000, 200))[min(job.effort, 3) - 1]
        gap = options.gap / 10
    else:
        windows, nodes, steps = ((1, 100, 1), (8, 1000, 4), (32, 2000, 6), (128, 4000, 8))[min(job.effort, 4) - 1]
        gap = options.gap / 2
    return SolveLimits(windows, nodes, steps, gap, seconds_each=NEVER_S, workers=options.workers)
