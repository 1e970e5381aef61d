"""From a memory problem to a checked memory plan: the whole pass in one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import msgspec

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.documents.quantities import Quantity, parse_quantity
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.bound import sentence
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.formulation.memory_rows import row_peak
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, store_all
from treadle.planner.passes.memory.plain import whole_peak
from treadle.planner.passes.memory.problem import RESERVE, MemoryProblem
from treadle.planner.passes.memory.search.attempts import MemoryOptions
from treadle.planner.passes.memory.search.rounds import BoundedSchedule, search
from treadle.planner.passes.memory.simulate import simulate, simulated
from treadle.planner.passes.memory.variants import restrict
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.search.incumbent import Incumbent
from treadle.planner.solver import Progress
from treadle.planner.version import TOOL

__all__ = ["Budget", "MemoryOptions", "parse_budget", "plan_memory", "with_budget"]

DEFAULTS = MemoryOptions()
Budget = Quantity
"""Bytes, or a share of the peak of plain PyTorch."""


def parse_budget(text: str, *, where: str = "--budget") -> Budget:
    """`8GiB` or any other size in bytes, `0.6x` a share of plain PyTorch's peak. Raises InputError for anything
    else."""
    return parse_quantity(text, share_of="plain PyTorch's peak", where=where)


def plan_memory(
    problem: MemoryProblem,
    *,
    options: MemoryOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[MemoryDecisions]], None] | None = None,
) -> Plan[MemoryDecisions]:
    """The fastest plan found for one training step within its budget, checked.

    `on_plan` is called with the best checked plan so far, marked as interrupted: at once with the first one, with later
    ones so that a tenth of the time at most goes into it. Ctrl-C and SIGTERM end the search with the best plan so far.
    Raises InputError for a problem that is not sound,
    InfeasibleError with the least feasible budget where there is provably no plan, LimitError when the limits ended the
    search without one.
    """
    clock = clock or Clock.of(options.time_limit_s)
    problem = prepared(problem, options)
    if on_plan is None:
        return plan_of(problem, search(problem, options, on_progress, clock=clock), options, inputs)
    tick, offer = publishing(problem, options, inputs, on_progress, on_plan)
    return plan_of(problem, search(problem, options, tick, offer, clock=clock), options, inputs)


def publishing(
    problem: MemoryProblem,
    options: MemoryOptions,
    inputs: Mapping[str, InputRef] | None,
    on_progress: Callable[[Progress], None] | None,
    on_plan: Callable[[Plan[MemoryDecisions]], None],
) -> tuple[Callable[[Progress], None], Callable[[BoundedSchedule], None]]:
    """The callbacks of a search of `problem`: for its progress, and for solutions, which `on_plan` gets as plans."""
    incumbent = Incumbent[BoundedSchedule](lambda found: on_plan(plan_of(problem, found, options, inputs)))

    def tick(progress: Progress) -> None:
        incumbent.poll()
        if on_progress is not None:
            on_progress(progress)

    return tick, incumbent.offer


def with_budget(problem: MemoryProblem, budget: Budget, options: MemoryOptions = DEFAULTS) -> MemoryProblem:
    """The problem with this budget. A share is of plain PyTorch's peak with the reserve of `options`, so that variants
    of one problem get the same bytes."""
    if not isinstance(budget, int):
        budget = int(budget * whole_peak(_reserved(problem, options)))
    return msgspec.structs.replace(problem, budget_bytes=budget)


def prepared(problem: MemoryProblem, options: MemoryOptions) -> MemoryProblem:
    """The problem that is solved: with the reserve of the options in its base, restricted to what they allow."""
    problem = _reserved(problem, options)
    if problem.budget_bytes <= 0:
        raise InputError(f"found a budget of {problem.budget_bytes} bytes, expected more than nothing")
    return restrict(problem, options.families, options.recompute)


def _reserved(problem: MemoryProblem, options: MemoryOptions) -> MemoryProblem:
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="memory problem", path=path)
    if not options.reserve_bytes:
        return problem
    reserve = problem.base.get(RESERVE, 0) + options.reserve_bytes
    return msgspec.structs.replace(problem, base={**problem.base, RESERVE: reserve})


def plan_of(
    problem: MemoryProblem, found: BoundedSchedule, options: MemoryOptions, inputs: Mapping[str, InputRef] | None = None
) -> Plan[MemoryDecisions]:
    """The checked plan of what a search found."""
    decisions = decide(problem, found.schedule, options)
    return certified(
        decisions,
        time_ns=decisions.objective_ns,
        peak_bytes=decisions.exact_peak_bytes,
        bound=found.bound if options.recompute else replace(found.bound, scope="no recomputation"),
        sentence=sentence,
        check=check,
        inputs=inputs or {},
        provenance=Provenance(
            tool=TOOL,
            method=found.method,
            parts=found.parts,
            options=asdict(options),
            solver_status=found.solver_status,
            limit_fired=found.limit_fired,
            interrupted=found.interrupted,
        ),
    )


def decide(problem: MemoryProblem, schedule: RecomputeSchedule, options: MemoryOptions = DEFAULTS) -> MemoryDecisions:
    """The decisions document of a pruned schedule."""
    program = lower(problem, schedule)
    exact = simulate(problem, program)
    everything = simulated(problem, store_all(problem))
    return MemoryDecisions(
        problem=problem,
        dependency_set=options.dependency_set,
        families=options.families,
        recompute=options.recompute,
        program=program,
        objective_ns=exact.time_ns,
        store_all_ns=everything.time_ns,
        bound_peak_bytes=row_peak(problem, schedule),
        exact_peak_bytes=exact.peak_bytes,
        store_all_peak_bytes=everything.peak_bytes,
    )
