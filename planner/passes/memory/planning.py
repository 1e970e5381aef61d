"""From a trace and a budget to a checked memory plan: the whole pass in one function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import msgspec

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.documents.quantities import Quantity, parse_quantity
from treadle.planner.documents.store import digest
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.memory.bound import sentence
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.extract.problem import problem_from_trace
from treadle.planner.passes.memory.formulation.memory_rows import row_peak
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, store_all
from treadle.planner.passes.memory.plain import whole_peak
from treadle.planner.passes.memory.problem import RESERVE, MemoryProblem
from treadle.planner.passes.memory.search.attempts import MemoryOptions
from treadle.planner.passes.memory.search.rounds import Found, search
from treadle.planner.passes.memory.simulate import simulate
from treadle.planner.passes.memory.variants import restrict
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.search.telling import Teller
from treadle.planner.solver import Progress
from treadle.planner.version import TOOL

__all__ = ["Budget", "MemoryOptions", "budget_in_bytes", "parse_budget", "plan_memory", "plan_problem"]

DEFAULTS = MemoryOptions()
Budget = Quantity
"""Bytes, or a share of the peak of plain PyTorch."""


def parse_budget(text: str, *, where: str = "--budget") -> Budget:
    """`8GiB` or any other size in bytes, `0.6x` a share of plain PyTorch's peak. Raises InputError for anything
    else."""
    return parse_quantity(text, share_of="plain PyTorch's peak", where=where)


def plan_memory(
    trace: Trace,
    *,
    budget: Budget | str,
    options: MemoryOptions = DEFAULTS,
    clock: Clock | None = None,
    trace_file: str = "trace",
    inputs: dict[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[MemoryDecisions]], None] | None = None,
) -> Plan[MemoryDecisions]:
    """The fastest plan found for one training step within `budget`, checked.

    budget: bytes, or a Fraction of the step's peak in plain PyTorch, or either as people write it. `inputs`
    are what the plan names as its sources, the trace alone where absent. `on_progress` hears of incumbents and bounds
    in ns, `on_plan` of the best checked plan so far, marked as interrupted; it is called in this thread and sees the
    first plan at once and later ones so that a tenth of the time at most goes into it. Raises InputError for a trace
    without backward ops or without times, InfeasibleError with the least feasible budget where there is provably no
    plan, LimitError when the limits ended the search without one.
    """
    clock = clock or Clock.of(options.time_limit_s)
    if isinstance(budget, str):
        budget = parse_budget(budget)
    problem = problem_from_trace(trace, 0, hold_gradients=options.hold_gradients)
    if inputs is None:
        inputs = {"trace": InputRef(file=trace_file, digest=digest(trace))}
    return plan_problem(
        problem,
        budget=budget,
        options=options,
        inputs=inputs,
        on_progress=on_progress,
        on_plan=on_plan,
        clock=clock,
    )


def plan_problem(
    problem: MemoryProblem,
    *,
    budget: Budget | None = None,
    options: MemoryOptions = DEFAULTS,
    inputs: dict[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[MemoryDecisions]], None] | None = None,
    clock: Clock | None = None,
) -> Plan[MemoryDecisions]:
    """The same for an explicit problem; without `budget` the problem's own holds. `clock` is that of the command where
    it has one; else the time limit of `options` begins now."""
    clock = clock or Clock.of(options.time_limit_s)
    problem = prepared(problem, budget, options)
    if on_plan is None:
        return plan_of(problem, search(problem, options, on_progress, clock=clock), options, inputs)
    tick, offer = telling(problem, options, inputs, on_progress, on_plan)
    return plan_of(problem, search(problem, options, tick, offer, clock=clock), options, inputs)


def telling(
    problem: MemoryProblem,
    options: MemoryOptions,
    inputs: dict[str, InputRef] | None,
    on_progress: Callable[[Progress], None] | None,
    on_plan: Callable[[Plan[MemoryDecisions]], None],
) -> tuple[Callable[[Progress], None], Callable[[Found], None]]:
    """What a search of `problem` calls so that `on_plan` hears of checked plans, and `on_progress` of the rest."""
    teller = Teller[Found](lambda found: on_plan(plan_of(problem, found, options, inputs)))

    def tick(progress: Progress) -> None:
        teller.tick()
        if on_progress is not None:
            on_progress(progress)

    return tick, teller.offer


def prepared(problem: MemoryProblem, budget: Budget | None, options: MemoryOptions) -> MemoryProblem:
    """The problem that is solved: sound, with its budget in bytes, restricted to what the options allow, with their
    reserve in its base.

    A share is of plain PyTorch's peak with the reserve, so that variants of one problem get the same bytes.
    """
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="memory problem", path=path)
    if options.reserve_bytes:
        reserve = problem.base.get(RESERVE, 0) + options.reserve_bytes
        problem = msgspec.structs.replace(problem, base={**problem.base, RESERVE: reserve})
    if budget is not None:
        problem = msgspec.structs.replace(problem, budget_bytes=budget_in_bytes(problem, budget))
    if problem.budget_bytes <= 0:
        raise InputError(f"found a budget of {problem.budget_bytes} bytes, expected more than nothing")
    return restrict(problem, options.families, options.recompute)


def plan_of(
    problem: MemoryProblem, found: Found, options: MemoryOptions, inputs: dict[str, InputRef] | None = None
) -> Plan[MemoryDecisions]:
    """The checked plan of what a search found."""
    decisions = decide(problem, found.schedule, options)
    return certified(
        decisions,
        time_ns=decisions.objective_ns,
        peak_bytes=decisions.exact_peak_bytes,
        bound=found.bound if options.recompute else replace(found.bound, scope="no recomputation"),
        argument=sentence(found.bound),
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


def budget_in_bytes(problem: MemoryProblem, budget: Budget) -> int:
    """The budget in bytes, a share of `whole_peak` rounded down."""
    return budget if isinstance(budget, int) else int(budget * whole_peak(problem))


def decide(problem: MemoryProblem, schedule: RecomputeSchedule, options: MemoryOptions = DEFAULTS) -> MemoryDecisions:
    """The decisions document of a pruned schedule."""
    program = lower(problem, schedule)
    exact = simulate(problem, program)
    everything = simulate(problem, lower(problem, store_all(problem)))
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
