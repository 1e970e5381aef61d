"""From a trace and a machine to a checked swap plan: the whole pass in one function."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from treadle.planner.documents.plan import Generation, InputRef, Plan, Provenance
from treadle.planner.documents.quantities import Quantity, parse_quantity
from treadle.planner.documents.store import digest
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.unrolling import INPLACE, as_run, inplace_runs
from treadle.planner.passes.swap.arrays import Arrays, Nodes, arrays_of
from treadle.planner.passes.swap.bound import lower_bound, sentence
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.decisions import OpRun, SwapDecisions
from treadle.planner.passes.swap.early import write_back_early
from treadle.planner.passes.swap.evaluate import decisions
from treadle.planner.passes.swap.extract import problem_from_trace
from treadle.planner.passes.swap.layout import trimmed
from treadle.planner.passes.swap.minimum import require_feasible
from treadle.planner.passes.swap.problem import SwapMachine, SwapProblem
from treadle.planner.passes.swap.search.methods import Found, Hooks, search
from treadle.planner.passes.swap.search.options import SwapOptions
from treadle.planner.passes.swap.search.pools import live_bytes
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.search.telling import Teller
from treadle.planner.version import TOOL

__all__ = [
    "Memory",
    "Progress",
    "SwapOptions",
    "footprint",
    "inplace_problem",
    "parse_memory",
    "plan_swap",
    "plan_swap_problem",
]

DEFAULTS = SwapOptions()
Memory = Quantity
"""Bytes, or a share of the ideal footprint."""
GUESSED = 0.25
"""Of the time that is left, at most, is what telling a plan is taken to last until one was told."""


class Progress(NamedTuple):
    """One generation of the search; `bound_ns` is what no plan goes below."""

    generation: Generation
    bound_ns: int
    elapsed_s: float


def parse_memory(text: str, *, where: str = "--device-memory") -> Memory:
    """`16GiB` or any other size in bytes, `0.5x` a share of the ideal footprint. Raises InputError for others."""
    return parse_quantity(text, share_of="the ideal footprint", where=where)


def footprint(problem: SwapProblem) -> int:
    """Bytes in which the order of the trace runs without any copy: its most live tensors, the largest scratch and the
    reserve. Persistent tensors live throughout."""
    arrays = arrays_of(problem)
    most = int(live_bytes(arrays, np.arange(len(problem.ops))).max(initial=0))
    return most + problem.scratch_bytes + problem.reserve_bytes


def plan_swap(
    trace: Trace,
    machine: SwapMachine,
    *,
    memory: Memory | None = None,
    reserve_bytes: int = 0,
    options: SwapOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: dict[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[SwapDecisions]], None] | None = None,
) -> Plan[SwapDecisions]:
    """The fastest plan found for one iteration of `trace` within the memory of `machine`, checked.

    Ops write in place where the trace tells that they can and nothing is lost; `decisions.runs` then say which.

    memory: takes the place of the machine's; a Fraction is a share of the ideal footprint. `inputs` are what the plan
    names as its sources, the trace alone where absent. `on_progress` hears of every generation, `on_plan` of the best
    checked plan so far, marked as interrupted. Ctrl-C and SIGTERM end the search with the best plan so far. `clock` is
    that of the command where it has one; else the time limit of `options` begins now.

    Raises InputError for a trace without times, InfeasibleError with the least memory and what sets it where there is
    provably no plan, LimitError when the limits ended the search without one.
    """
    clock = clock or Clock.of(options.time_limit_s)
    problem, runs = inplace_problem(trace, machine, reserve_bytes)
    return plan_swap_problem(
        problem,
        runs=runs,
        memory=memory,
        options=options,
        clock=clock,
        inputs=inputs if inputs is not None else {"trace": InputRef(file="trace", digest=digest(trace))},
        on_progress=on_progress,
        on_plan=on_plan,
    )


def inplace_problem(
    trace: Trace, machine: SwapMachine, reserve_bytes: int = 0
) -> tuple[SwapProblem, tuple[OpRun, ...]]:
    """The swap problem of `trace` with every op in place that can be, and the runs that it speaks of: none where that
    is the trace as it stands. Raises InputError as `problem_from_trace`."""
    runs = inplace_runs(trace)
    if all(run.implementation != INPLACE for run in runs):
        runs = ()
    return problem_from_trace(as_run(trace, runs), machine, reserve_bytes), runs


def plan_swap_problem(
    problem: SwapProblem,
    *,
    runs: tuple[OpRun, ...] = (),
    memory: Memory | None = None,
    options: SwapOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: dict[str, InputRef] | None = None,
    bound: Bound | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[SwapDecisions]], None] | None = None,
) -> Plan[SwapDecisions]:
    """The same for an explicit problem; `runs` are those of which it speaks, where it comes from a trace. `bound` is
    one that holds, where it is known; it is proved otherwise."""
    clock = clock or Clock.of(options.time_limit_s)
    with clock.listening():
        return _planned(prepared(problem, memory), runs, options, clock, inputs or {}, bound, on_progress, on_plan)


def _planned(
    problem: SwapProblem,
    runs: tuple[OpRun, ...],
    options: SwapOptions,
    clock: Clock,
    inputs: dict[str, InputRef],
    bound: Bound | None,
    on_progress: Callable[[Progress], None] | None,
    on_plan: Callable[[Plan[SwapDecisions]], None] | None,
) -> Plan[SwapDecisions]:
    require_feasible(problem, options.allocator)
    arrays = arrays_of(problem)
    proven = bound or Bound(problem.ideal_ns, Argument("compute"), "any order")
    limit_fired = False
    told: tuple[Nodes, SwapDecisions] | None = None

    def plan(found: Found, interrupted: bool = True) -> Plan[SwapDecisions]:
        nonlocal told
        known = told[1] if told is not None and told[0] is found.nodes else None
        decided = known or decided_of(problem, arrays, found, options)
        told = (found.nodes, decided)
        made = plan_of(decided, found, proven, options, inputs, limit_fired or found.cut, interrupted)
        return replace(made, decisions=replace(made.decisions, runs=runs)) if runs else made

    # Until a plan was told, what came before planning tells how fast this machine reads and writes such a document.
    guess_s = min(max(0.0, clock.elapsed_s), GUESSED * max(0.0, clock.left_s))
    tell = (lambda found: on_plan(plan(found))) if on_plan is not None else lambda found: None
    teller = Teller[Found](tell, ends=clock.ends, took_s=guess_s, now=clock.now)

    def tick(generation: Generation) -> None:
        teller.tick()
        if on_progress is not None:
            on_progress(Progress(generation, proven.time_ns, clock.elapsed_s))

    def stopped() -> bool:
        nonlocal limit_fired
        limit_fired = limit_fired or clock.now() > teller.stops
        return limit_fired or clock.stop.is_set()

    def proved() -> Bound:
        nonlocal proven
        order = range(len(problem.ops)) if options.keep_order else None
        if bound is not None:
            proven = bound
        elif not stopped():
            proven = lower_bound(problem, order, time_limit_s=left_s(), stop=clock.stop)
        return proven

    def left_s() -> float:
        return max(0.1, teller.stops - clock.now())

    found = search(problem, arrays, options, proved, Hooks(teller.offer, tick, stopped, left_s, clock.stop))
    return plan(found, clock.stop.is_set())


def prepared(problem: SwapProblem, memory: Memory | None = None) -> SwapProblem:
    """The problem with the memory that is meant. Raises InputError for one that is not sound."""
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="swap problem", path=path)
    if memory is None:
        return problem
    count = memory if isinstance(memory, int) else int(memory * footprint(problem))
    return replace(problem, machine=replace(problem.machine, memory_bytes=count))


def decided_of(problem: SwapProblem, arrays: Arrays, found: Found, options: SwapOptions) -> SwapDecisions:
    """What a search found as decisions, not yet checked."""
    pool, nodes = found.pool, found.nodes
    if pool is not None:
        pool, nodes = trimmed(arrays.sizes, pool, nodes)
    early: tuple[int, ...] = ()
    if not options.faithful:
        nodes, early = write_back_early(arrays, nodes)
    return decisions(problem, arrays, found.order, nodes, pool, options.allocator, early)


def plan_of(
    decided: SwapDecisions,
    found: Found,
    bound: Bound,
    options: SwapOptions,
    inputs: dict[str, InputRef],
    limit_fired: bool,
    interrupted: bool,
) -> Plan[SwapDecisions]:
    """The plan of `decided`, which a search found. Raises CheckFailed should they be wrong."""
    if found.bound is not None and not any(node.early for node in decided.nodes):
        bound = found.bound  # of the exact search, which has no early copies
    return certified(
        decided,
        time_ns=decided.time_ns,
        peak_bytes=decided.peak_bytes,
        bound=bound.of_plan(decided.time_ns),
        argument=sentence(bound),
        check=check,
        inputs=inputs,
        provenance=Provenance(
            tool=TOOL,
            method=found.method,
            parts=found.parts,
            options=options.said,
            search_log=found.log,
            limit_fired=limit_fired,
            interrupted=interrupted,
        ),
    )
