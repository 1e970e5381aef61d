"""From a swap problem to a checked swap plan: the whole pass in one function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as with_options

import numpy as np
from msgspec.structs import replace as with_fields

from treadle.planner.documents.plan import Generation, InputRef, Plan, Provenance
from treadle.planner.documents.quantities import Quantity, parse_quantity
from treadle.planner.documents.trace import OpRun, Trace
from treadle.planner.errors import InfeasibleError, InputError, LimitError
from treadle.planner.graph.unrolling import INPLACE, as_run, inplace_runs
from treadle.planner.passes.swap.arrays import Arrays, Nodes, arrays_of
from treadle.planner.passes.swap.bound import EXACT, lower_bound, sentence
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.early import write_back_early
from treadle.planner.passes.swap.evaluate import decisions
from treadle.planner.passes.swap.extract import problem_from_trace
from treadle.planner.passes.swap.layout import trimmed
from treadle.planner.passes.swap.minimum import require_feasible
from treadle.planner.passes.swap.problem import SwapMachine, SwapProblem
from treadle.planner.passes.swap.search.methods import FoundPlan, Hooks, search
from treadle.planner.passes.swap.search.options import SwapOptions
from treadle.planner.passes.swap.search.pools import live_bytes
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import SEARCHED, Measuring, Shortlist, cut_short, measure_in_turns
from treadle.planner.search.incumbent import Incumbent
from treadle.planner.search.top import Predicted
from treadle.planner.solver import Progress, relative_gap
from treadle.planner.version import TOOL

log = logging.getLogger("treadle")

__all__ = [
    "Memory",
    "SwapOptions",
    "SwapProgress",
    "SwapTask",
    "footprint",
    "inplace_problem",
    "parse_memory",
    "plan_swap",
    "with_memory",
]

DEFAULTS = SwapOptions()
Memory = Quantity
"""Bytes, or a share of the ideal footprint."""
WHAT, MODEL = "swap plan", "simulator of iterations"
Rivals = dict[str, Plan[SwapDecisions]]
"""Checked plans by allocator and the part of the search that found them."""
GUESSED = 0.25
"""Share of the time that is left: the most that publishing a plan is taken to last before the first one."""


@dataclass(frozen=True)
class SwapTask:
    """A swap problem; the runs of a trace's ops that are its ops, none if these are the trace's ops unchanged; and a
    bound that is proved already, if any."""

    problem: SwapProblem
    runs: tuple[OpRun, ...] = ()
    bound: Bound | None = None


@dataclass(frozen=True)
class SwapProgress(Progress):
    """One generation of the search."""

    generation: Generation = field(kw_only=True)


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
    problem: SwapTask,
    *,
    options: SwapOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[SwapProgress], None] | None = None,
    on_plan: Callable[[Plan[SwapDecisions]], None] | None = None,
) -> Plan[SwapDecisions]:
    """The fastest plan found for one iteration within the memory of its machine, checked. With `options.measuring` it
    is the fastest measured of the best plans that each allocator and part of the search found, where the limits leave
    time for that.

    `on_plan` is called with the best checked plan so far, marked as interrupted. Ctrl-C and SIGTERM end the search with
    the best plan so far.

    Raises InputError for a problem that is not sound or where no measured plan may be taken, InfeasibleError with the
    least memory and what sets it where there is provably no plan, LimitError when the limits ended the search without
    one.
    """
    clock = clock or Clock.of(options.time_limit_s)
    require_sound(problem.problem)
    plan = fastest if options.allocators else plan_one
    measuring = options.measuring
    rivals: Rivals | None = None if measuring is None else {}
    searching = clock if measuring is None else clock.share(1 / SEARCHED)
    with clock.listening():
        found = plan(problem, options, searching, inputs or {}, on_progress, on_plan, rivals)
        if measuring is None or not rivals or clock.over():
            return found
        return fastest_measured(found, rivals, measuring, clock)


def inplace_problem(trace: Trace, machine: SwapMachine, reserve_bytes: int = 0) -> SwapTask:
    """The swap problem of `trace` with every op in place that can be, and its runs. Raises InputError as
    `problem_from_trace`."""
    runs = inplace_runs(trace)
    if all(run.implementation != INPLACE for run in runs):
        runs = ()
    return SwapTask(problem_from_trace(as_run(trace, runs), machine, reserve_bytes), runs)


def require_sound(problem: SwapProblem) -> None:
    """Raises InputError for a problem that is not sound."""
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="swap problem", path=path)


def with_memory(problem: SwapProblem, memory: Memory) -> SwapProblem:
    """The problem with this memory in place of the machine's. Raises InputError for one that is not sound."""
    require_sound(problem)
    count = memory if isinstance(memory, int) else int(memory * footprint(problem))
    return with_fields(problem, machine=with_fields(problem.machine, memory_bytes=count))


def fastest(
    task: SwapTask,
    options: SwapOptions,
    clock: Clock,
    inputs: Mapping[str, InputRef],
    on_progress: Callable[[SwapProgress], None] | None,
    on_plan: Callable[[Plan[SwapDecisions]], None] | None,
    rivals: Rivals | None = None,
) -> Plan[SwapDecisions]:
    """The fastest plan of several allocators, the first of equals; each gets an equal share of the time that is left.

    No time goes into an allocator that cannot run the problem or, without `rivals`, cannot win. None is begun after
    Ctrl-C, nor when less time is left than the first plan took. If none has a plan, the error is that of the last one.
    """
    best: Plan[SwapDecisions] | None = None
    failure: InfeasibleError | LimitError | None = None
    fired, needed_s, began = False, 0.0, clock.now()

    def offer(plan: Plan[SwapDecisions]) -> None:
        nonlocal needed_s
        if on_plan is not None and (best is None or time_of(plan) < time_of(best)):
            on_plan(plan)
        needed_s = needed_s or clock.now() - began

    for place, allocator in enumerate(options.allocators):
        if best is not None and clock.left_s <= needed_s:
            fired = True
            break
        share = clock.share(len(options.allocators) - place)
        chosen = with_options(options, allocator=allocator, allocators=())
        log.info("allocator %s begins", allocator)
        try:
            plan = plan_one(task, chosen, share, inputs, on_progress, offer, rivals)
        except (InfeasibleError, LimitError) as error:
            failure = error
            if clock.stop.is_set():
                break
            continue
        fired = fired or plan.provenance.limit_fired
        if best is None or time_of(plan) < time_of(best):
            best = plan
        proved = best.certificate.optimal and best.certificate.scope not in EXACT.values()
        if clock.stop.is_set() or (proved and rivals is None):
            break
    if best is None:
        assert failure is not None
        raise failure
    made = {**best.provenance.options, "allocators": list(options.allocators)}
    interrupted = clock.stop.is_set()
    return with_fields(
        best, provenance=with_fields(best.provenance, options=made, limit_fired=fired, interrupted=interrupted)
    )


def fastest_measured(
    found: Plan[SwapDecisions], rivals: Rivals, measuring: Measuring[Plan[SwapDecisions]], clock: Clock
) -> Plan[SwapDecisions]:
    """The fastest measured of `rivals`, of which equal ones count once, with the options of `found`, the one of least
    simulated time."""
    seen: set[object] = set()
    distinct: Rivals = {}
    for name, plan in rivals.items():
        decided = plan.decisions
        if (key := (decided.order, decided.initial, decided.nodes)) not in seen:
            seen.add(key)
            distinct[name] = plan
    predicted = [Predicted(name, time_of(plan)) for name, plan in distinct.items()]
    records = measure_in_turns(MODEL, [Shortlist(WHAT, predicted, [*distinct.values()])], measuring, clock)
    made = found.provenance
    if not records:
        return with_fields(found, provenance=with_fields(made, interrupted=True))
    [tuned] = records
    taken = distinct[tuned.chosen]
    options = {**made.options, "allocator": taken.decisions.allocator}
    provenance = with_fields(
        taken.provenance,
        options=options,
        tuned=(tuned,),
        limit_fired=made.limit_fired or cut_short(tuned, clock),
        interrupted=clock.stop.is_set(),
    )
    return with_fields(taken, provenance=provenance)


def plan_one(
    task: SwapTask,
    options: SwapOptions,
    clock: Clock,
    inputs: Mapping[str, InputRef],
    on_progress: Callable[[SwapProgress], None] | None,
    on_plan: Callable[[Plan[SwapDecisions]], None] | None,
    rivals: Rivals | None = None,
) -> Plan[SwapDecisions]:
    """The fastest plan found with the allocator of the options; `rivals` gets the best one of each part of the search,
    by allocator and part."""
    problem, bound = task.problem, task.bound
    require_feasible(problem, options.allocator)
    arrays = arrays_of(problem)
    proven = bound or Bound(problem.ideal_ns, Argument("compute"), "any order")
    limit_fired = False
    latest: tuple[Nodes, SwapDecisions] | None = None

    def plan(found: FoundPlan, interrupted: bool = True) -> Plan[SwapDecisions]:
        nonlocal latest
        known = latest[1] if latest is not None and latest[0] is found.nodes else None
        decided = known or decided_of(problem, arrays, found, options)
        latest = (found.nodes, decided)
        made = plan_of(decided, found, proven, options, inputs, limit_fired or found.cut, interrupted)
        return with_fields(made, decisions=with_fields(made.decisions, runs=task.runs)) if task.runs else made

    # Before the first plan, the time spent before planning shows how fast this machine reads and writes documents.
    guess_s = min(max(0.0, clock.elapsed_s), GUESSED * max(0.0, clock.left_s))
    publish = (lambda found: on_plan(plan(found))) if on_plan is not None else lambda found: None
    incumbent = Incumbent[FoundPlan](publish, ends=clock.ends, cost_s=guess_s, now=clock.now)

    def tick(generation: Generation) -> None:
        incumbent.poll()
        if on_progress is not None:
            best, least = generation.best_ns, proven.time_ns
            gap = relative_gap(best, least)
            work = f"{options.allocator}, generation {generation.number}"
            on_progress(SwapProgress(best, least, gap, clock.elapsed_s, work, generation=generation))

    def stopped() -> bool:
        nonlocal limit_fired
        limit_fired = limit_fired or clock.now() > incumbent.search_ends
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
        return max(0.1, incumbent.search_ends - clock.now())

    bests: dict[str, FoundPlan] = {}

    def offer(better: FoundPlan) -> None:
        bests[better.method] = better
        incumbent.offer(better)

    found = search(problem, arrays, options, proved, Hooks(offer, tick, stopped, left_s, clock.stop))
    interrupted = clock.stop.is_set()
    if rivals is not None:
        for method, best in bests.items():
            whole = found._replace(time_ns=best.time_ns, order=best.order, pool=best.pool, nodes=best.nodes)
            rivals[f"{options.allocator}, {method}"] = plan(whole._replace(method=method), interrupted)
    return plan(found, interrupted)


def decided_of(problem: SwapProblem, arrays: Arrays, found: FoundPlan, options: SwapOptions) -> SwapDecisions:
    """The decisions of a found plan, not checked yet."""
    pool, nodes = found.pool, found.nodes
    if pool is not None:
        pool, nodes = trimmed(arrays.sizes, pool, nodes)
    early: tuple[int, ...] = ()
    if not options.faithful:
        nodes, early = write_back_early(arrays, nodes)
    return decisions(problem, arrays, found.order, nodes, pool, options.allocator, early)


def plan_of(
    decided: SwapDecisions,
    found: FoundPlan,
    bound: Bound,
    options: SwapOptions,
    inputs: Mapping[str, InputRef],
    limit_fired: bool,
    interrupted: bool,
) -> Plan[SwapDecisions]:
    """The plan of `decided`, which a search found. Raises CheckFailed if they fail their check."""
    if found.bound is not None and not any(node.early for node in decided.nodes):
        bound = found.bound  # of the exact search, which has no early copies
    return certified(
        decided,
        time_ns=decided.time_ns,
        peak_bytes=decided.peak_bytes,
        bound=bound.of_plan(decided.time_ns),
        sentence=sentence,
        check=check,
        inputs=inputs,
        provenance=Provenance(
            tool=TOOL,
            method=found.method,
            parts=found.parts,
            options=options.recorded,
            search_log=found.log,
            limit_fired=limit_fired,
            interrupted=interrupted,
        ),
    )


def time_of(plan: Plan[SwapDecisions]) -> int:
    """Nanoseconds of one iteration under a swap plan."""
    return plan.decisions.time_ns
