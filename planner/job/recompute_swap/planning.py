"""Swapping and recomputation together: from a trace and a machine to a checked swap plan in which ops run again.

Programs are scored by quick swap plans: the step as it stands, sets that a linear program suggests or that are cheaper
to recompute than to copy, and the plan of the memory pass. Then the swap pass searches the step as it stands, in half
of the time, unless the best plan already meets the bound of swapping without recomputation. More programs come from
what its plan copies, from plans of the memory pass at other budgets and from a local search; the swap pass searches
order and memory of the best few in the time that is left. Every new best plan is checked and published at once.

So the plan is never slower than that of the swap pass in half of the time, nor than the memory plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.trace import OpRun, Trace
from treadle.planner.errors import InfeasibleError, InputError, LimitError
from treadle.planner.graph.unrolling import inplace_runs
from treadle.planner.job.recompute_swap.local import improve
from treadle.planner.job.recompute_swap.memory_runs import allowed
from treadle.planner.job.recompute_swap.prices import cheaper
from treadle.planner.job.recompute_swap.programs import Side, is_short, memory_alone, memory_plans, sides
from treadle.planner.job.recompute_swap.relaxation import joint_bound
from treadle.planner.job.recompute_swap.scoring import QuickPlan, Scorer
from treadle.planner.job.recompute_swap.sets import OpSequence, RunValue
from treadle.planner.passes.memory.lower import store_all
from treadle.planner.passes.memory.planning import MemoryOptions
from treadle.planner.passes.swap.bound import lower_bound, sentence
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.minimum import require_feasible
from treadle.planner.passes.swap.planning import (
    Memory,
    SwapOptions,
    SwapProgress,
    SwapTask,
    decided_of,
    inplace_problem,
    plan_of,
    plan_swap,
    time_of,
    with_memory,
)
from treadle.planner.passes.swap.problem import SwapMachine, SwapProblem
from treadle.planner.passes.swap.search.methods import FoundPlan
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.certified import certificate
from treadle.planner.search.clock import Clock
from treadle.planner.search.incumbent import MARGIN
from treadle.planner.solver import relative_gap


@dataclass(frozen=True)
class JointOptions:
    """`swap` are the options of the swap pass, its time limit that of everything. families: the families of other
    calls that a plan may use, None for all. `memory` are the options of the memory pass in the memory of the device,
    without its families and time limit. evaluations: of the local search, from `starts` programs."""

    swap: SwapOptions = field(default_factory=SwapOptions)
    families: tuple[str, ...] | None = None
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    evaluations: int = 300
    starts: int = 3
    finalists: int = 2
    """Programs that get a whole swap search."""

    @property
    def recorded(self) -> dict[str, Any]:
        """For the provenance."""
        return {
            **self.swap.recorded,
            "families": self.families,
            "evaluations": self.evaluations,
            "with_recompute": True,
        }


DEFAULTS = JointOptions()
SETS, MEMORY, ALONE, FASTEST_SETS, BUDGETS, LOCAL, ALL = 0.05, 0.15, 0.65, 0.7, 0.75, 0.8, 0.95
"""When each part ends, in shares of the time limit: recomputed sets, the memory plan, swapping only, sets with its
fastest calls, memory plans at other budgets, the local search, and all searches."""
PARTS = (1, 2, 4, 6, 8)
"""Eighths of what is cheaper to recompute than to copy that are tried as a set, the cheapest first."""
OWN_CALLS, FASTEST, MEMORY_PLAN, SWAP_ALONE = "own calls", "fastest calls", "memory plan", "swap alone"


@dataclass(frozen=True)
class JointProblem:
    """One iteration of `trace` on `machine`; `memory` takes the place of the machine's."""

    trace: Trace
    machine: SwapMachine
    reserve_bytes: int = 0
    memory: Memory | None = None


def plan_joint(
    problem: JointProblem,
    *,
    options: JointOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[SwapProgress], None] | None = None,
    on_plan: Callable[[Plan[SwapDecisions]], None] | None = None,
) -> Plan[SwapDecisions]:
    """The fastest plan found for one iteration of `trace` that may copy tensors out and back or recompute them.

    A swap plan like any other; where ops run more than once or by another call, its `decisions.runs` say so and its
    problem is that of the unrolled trace. Arguments and errors are those of
    `treadle.planner.passes.swap.planning.plan_swap`.
    """
    clock = clock or Clock.of(options.swap.time_limit_s)
    reserve_bytes = problem.reserve_bytes
    with clock.listening():
        chosen = allowed(problem.trace, options.families)
        task = inplace_problem(chosen, problem.machine, reserve_bytes)
        if problem.memory is not None:
            task = dataclasses.replace(task, problem=with_memory(task.problem, problem.memory))
        whole = task.problem
        scorer = quickest(options, chosen, whole.machine, reserve_bytes, clock)
        options = dataclasses.replace(options, swap=dataclasses.replace(options.swap, allocator=scorer.allocator))
        joint = _Joint(scorer, options, inputs or {}, clock, on_progress, on_plan)
        joint.publish_best()
        try:
            joint.bound, sets = joint_bound(
                chosen, whole.machine, reserve_bytes, time_limit_s=joint.at(SETS) - clock.now(), stop=clock.stop
            )
        except InfeasibleError:
            require_feasible(whole, (*options.swap.allocators, options.swap.allocator)[-1])
            raise
        found = sides(chosen, whole.machine, reserve_bytes)
        joint.score_starts(found, sets)
        joint.search_alone(task)
        joint.score_programs(found, sets)
        joint.search_programs()
    return joint.finished()


def quickest(options: JointOptions, trace: Trace, machine: SwapMachine, reserve_bytes: int, clock: Clock) -> Scorer:
    """That of the allocator whose quick plan of the step as it stands is the fastest, with that plan if it has one."""
    runs = inplace_runs(trace)
    found: list[tuple[int, int, Scorer]] = []
    for place, name in enumerate(options.swap.allocators or (options.swap.allocator,)):
        if found and clock.over():
            break
        scorer = Scorer(trace, machine, reserve_bytes, name)
        scored = scorer.score(runs, OWN_CALLS)
        if scored is not None:
            found.append((scored.time_ns, place, scorer))
    return min(found)[2] if found else Scorer(trace, machine, reserve_bytes, options.swap.allocator)


class _Joint:
    """The best plan so far, and the steps that improve it."""

    def __init__(
        self,
        scorer: Scorer,
        options: JointOptions,
        inputs: Mapping[str, InputRef],
        clock: Clock,
        on_progress: Callable[[SwapProgress], None] | None,
        on_plan: Callable[[Plan[SwapDecisions]], None] | None,
    ) -> None:
        self.scorer, self.options, self.inputs = scorer, options, inputs
        self.bound = Bound(0, Argument("compute"), "any order")
        self.clock, self.began, self.ends = clock, clock.now(), clock.ends
        self.on_progress, self.on_plan = on_progress, on_plan
        self.scored: list[QuickPlan] = [] if scorer.best is None else [scorer.best]
        self.best: Plan[SwapDecisions] | None = None
        self.parts: dict[str, None] = {}
        self.limit_fired = False
        self.failure: InfeasibleError | LimitError | None = None

    def at(self, share: float) -> float:
        """When that share of the time for planning ends."""
        return self.began + share * (self.ends - self.began)

    def left_s(self, share: float) -> float:
        """Seconds until then, a moment at least."""
        return max(0.1, self.at(share) - self.clock.now())

    @property
    def interrupted(self) -> bool:
        return self.clock.stop.is_set()

    def ended(self, share: float) -> Callable[[], bool]:
        """Whether a part has ended that may last until `share` of the time limit."""

        def over() -> bool:
            fired = self.clock.now() > self.at(share)
            self.limit_fired = self.limit_fired or fired
            return fired or self.interrupted

        return over

    def score_starts(self, found: list[Side], sets: Collection[frozenset[str]]) -> None:
        """The step as it stands, sets over it and the memory plan, by quick plans."""
        runs = inplace_runs(self.scorer.trace)
        self.score_sets(runs, sets, self.ended(SETS))
        with suppress(InputError):
            self.score_memory_alone(found)
        self.publish_best()

    def search_alone(self, task: SwapTask) -> None:
        """The swap pass on the step as it stands, and sets of what its plan copies."""
        if self.beyond_swapping(task.problem):
            return
        plan = self.plan(task, SWAP_ALONE, self.at(ALONE))
        if plan is not None:
            copied = copied_tensors(plan)
            self.score_set_parts(
                inplace_runs(self.scorer.trace), self.ended(FASTEST_SETS), "swap plan",
                lambda program, value: program.instance(value) in copied,
            )  # fmt: skip

    def score_programs(self, found: list[Side], sets: Collection[frozenset[str]]) -> None:
        """Programs with the fastest calls, memory plans at other budgets, and a local search, by quick plans."""
        with suppress(InputError):
            for side in found:
                if not self.ended(FASTEST_SETS)():
                    runs = side.runs(store_all(side.problem))
                    self.score(runs, FASTEST)
                    self.score_sets(runs, sets, self.ended(FASTEST_SETS))
            for runs, name in memory_plans(found, self.at(BUDGETS), self.ended(BUDGETS)):
                self.score(runs, name)
        self.publish_best()
        starts = self.ranked()[: self.options.starts]
        for place, start in enumerate(starts, start=1):
            until = self.ended(BUDGETS + (LOCAL - BUDGETS) * place / len(starts))
            self.scored.append(improve(self.scorer, start, self.options.evaluations // len(starts), until))
        self.publish_best()

    def score_sets(self, runs: tuple[OpRun, ...], sets: Collection[frozenset[str]], over: Callable[[], bool]) -> None:
        """Programs that recompute sets of what `runs` make."""
        program = OpSequence(self.scorer.trace, runs)
        for members in sets:
            if not over():
                values = [value for value in program.gaps if value.tensor in members]
                self.score(program.with_set(values), "linear program")
        self.score_set_parts(runs, over, "prices")

    def score_set_parts(
        self,
        runs: tuple[OpRun, ...],
        over: Callable[[], bool],
        name: str,
        among: Callable[[OpSequence, RunValue], bool] = lambda program, value: True,
    ) -> None:
        """Programs that recompute the cheapest of what is cheaper to recompute than to copy, of values `among` some."""
        if over():
            return
        program = OpSequence(self.scorer.trace, runs)
        cheap = [value for value in cheaper(program, self.scorer.machine) if among(program, value)]
        for part in PARTS:
            if cheap and not over():
                self.score(program.with_set(cheap[: len(cheap) * part // 8]), name)

    def score_memory_alone(self, found: list[Side]) -> None:
        """The memory plan is a candidate whenever the memory pass has one by then; of a short step, however late."""
        memory = dataclasses.replace(self.options.memory, families=None)
        with suppress(InfeasibleError, LimitError):
            over = self.ended(ALL)()
            if not self.interrupted and (self.best is None or not over or all(map(is_short, found))):
                self.score(memory_alone(found, memory, self.at(MEMORY), self.ended(MEMORY)), MEMORY_PLAN)
                self.publish_best()

    def search_programs(self) -> None:
        """The swap pass on the best programs."""
        finalists = [one for one in self.ranked() if one.name != OWN_CALLS][: self.options.finalists]
        for place, one in enumerate(finalists):
            now = self.clock.now()
            self.plan(SwapTask(one.problem, one.runs), one.name, now + (self.at(ALL) - now) / (len(finalists) - place))

    def beyond_swapping(self, whole: SwapProblem) -> bool:
        """Whether it is proved that no plan which only swaps is faster than the best."""
        order = range(len(whole.ops)) if self.options.swap.keep_order else None
        with suppress(InfeasibleError):
            if self.best is not None and not self.ended(ALONE)():
                proved = lower_bound(whole, order, time_limit_s=self.left_s(ALONE), stop=self.clock.stop)
                return time_of(self.best) <= proved.time_ns
        return False

    def plan(self, task: SwapTask, name: str, until: float) -> Plan[SwapDecisions] | None:
        """The swap pass on one program; None where it has no time or no plan."""
        left_s = until - self.clock.now()
        if self.best is not None and (self.interrupted or left_s <= 0):
            self.limit_fired = self.limit_fired or left_s <= 0
            return None

        def publish(plan: Plan[SwapDecisions]) -> None:
            if self.on_plan is not None and (self.best is None or time_of(plan) < time_of(self.best)):
                self.on_plan(self.named(plan, task.runs, name))

        def progress(progress: SwapProgress) -> None:
            if self.on_progress is not None:
                bound, elapsed_s = self.bound.time_ns, self.clock.elapsed_s
                gap = relative_gap(progress.incumbent, bound)
                self.on_progress(dataclasses.replace(progress, bound=bound, gap=gap, elapsed_s=elapsed_s))

        swap = self.options.swap
        try:
            plan = plan_swap(
                dataclasses.replace(task, bound=self.bound),
                options=swap if name == SWAP_ALONE else dataclasses.replace(swap, allocators=()),
                clock=self.clock.until(until),
                inputs=self.inputs,
                on_progress=progress,
                on_plan=publish,
            )
        except (InfeasibleError, LimitError) as error:
            self.failure = self.failure or error
            return None
        self.parts[name] = None
        self.limit_fired = self.limit_fired or plan.provenance.limit_fired
        if self.best is None or time_of(plan) < time_of(self.best):
            self.best = self.named(plan, task.runs, name)
        return plan

    def score(self, runs: tuple[OpRun, ...], name: str) -> None:
        found = self.scorer.score(runs, name)
        if found is not None:
            self.scored.append(found)

    def ranked(self) -> list[QuickPlan]:
        """What was scored, each program once, the fastest first."""
        return sorted({one.runs: one for one in self.scored}.values(), key=lambda one: one.time_ns)

    def publish_best(self) -> None:
        """Decide and check the best quick plan, if it is ahead of all before."""
        one = self.scorer.best
        if one is None or (self.best is not None and time_of(self.best) <= one.time_ns):
            return
        began = self.clock.now()
        found = FoundPlan(one.time_ns, tuple(range(len(one.problem.ops))), one.pool, one.nodes, "planted", ("planted",))
        swap = self.options.swap
        decided = decided_of(one.problem, one.arrays, found, swap)
        plan = plan_of(decided, found, self.bound, swap, self.inputs, self.limit_fired, True)
        self.best = self.named(plan, one.runs, one.name)
        if self.on_plan is not None:
            self.on_plan(self.best)
        # The last plan is checked and written in the same time.
        self.ends = min(self.ends, self.clock.ends - MARGIN * (self.clock.now() - began))

    def named(self, plan: Plan[SwapDecisions], runs: tuple[OpRun, ...], name: str) -> Plan[SwapDecisions]:
        """The plan of a program with its runs, with the bound of swapping and recomputation together."""
        method = f"{name}, {plan.provenance.method}"
        return self.bounded(
            msgspec.structs.replace(
                plan,
                decisions=msgspec.structs.replace(plan.decisions, runs=runs),
                provenance=msgspec.structs.replace(plan.provenance, method=method, options=self.options.recorded),
            )
        )

    def bounded(self, plan: Plan[SwapDecisions]) -> Plan[SwapDecisions]:
        """The plan with the bound that is known by now."""
        time_ns = time_of(plan)
        proof = certificate(plan.certificate.checker, time_ns, self.bound.of_plan(time_ns), sentence)
        return msgspec.structs.replace(plan, certificate=proof)

    def finished(self) -> Plan[SwapDecisions]:
        """The best plan. Raises the error of the swap pass if there is none."""
        if self.best is None:
            raise self.failure or LimitError("no plan was found within the limits; raise --time-limit")
        provenance = msgspec.structs.replace(
            self.best.provenance,
            parts=tuple(dict.fromkeys((*self.parts, *self.scorer.names, *self.best.provenance.parts))),
            limit_fired=self.limit_fired,
            interrupted=self.interrupted,
        )
        return self.bounded(msgspec.structs.replace(self.best, provenance=provenance))


def copied_tensors(plan: Plan[SwapDecisions]) -> frozenset[str]:
    """Ids of the tensors that a swap plan copies back to the device."""
    made = plan.decisions
    return frozenset(made.problem.tensors[node.item].id for node in made.nodes if node.kind == "in")
