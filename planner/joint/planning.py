"""Swapping and recomputation together: from a trace and a machine to a checked swap plan in which ops run again.

The swap pass alone goes first and its plan counts. Then programs are scored by quick swap plans: plans of the memory
pass at many budgets, sets that a linear program suggests, and a local search from the best. The swap pass searches
order and memory of the best few; so the outcome is never behind the swap pass, nor behind what it makes of a memory
plan.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from planner.documents import digest
from planner.errors import InfeasibleError, InputError, LimitError
from planner.joint.local import improve
from planner.joint.memory_runs import allowed
from planner.joint.prices import cheaper
from planner.joint.programs import FASTEST, OWN_CALLS, memory_alone, programs
from planner.joint.relaxation import joint_bound
from planner.joint.scoring import Scored, Scorer
from planner.joint.sets import Program
from planner.memory.planning import MemoryOptions
from planner.memory.problem import FAMILIES
from planner.plan import InputRef, Plan
from planner.solver import relative_gap
from planner.solver.interrupt import stop_on_signals
from planner.swap.bound import Bound
from planner.swap.decisions import Run, SwapDecisions
from planner.swap.extract import problem_from_trace
from planner.swap.minimum import require_feasible
from planner.swap.planning import Memory, Progress, SwapOptions, plan_swap_problem, prepared
from planner.swap.problem import Machine, SwapProblem
from planner.trace import Trace


@dataclass(frozen=True)
class JointOptions:
    """`swap` are the options of the swap pass, its time limit that of everything. families: the families of other
    calls that a plan may use, None for all. `memory` are the options of the memory pass in the memory of the device,
    without its families and time limit. evaluations: of the local search, from so many `starts`."""

    swap: SwapOptions = field(default_factory=SwapOptions)
    families: tuple[str, ...] | None = None
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    evaluations: int = 300
    starts: int = 3
    finalists: int = 2
    """So many programs get a whole swap search."""

    @property
    def said(self) -> dict[str, Any]:
        """For the provenance."""
        return {**self.swap.said, "families": self.families, "evaluations": self.evaluations, "with_recompute": True}


DEFAULTS = JointOptions()
SAME_BITS = tuple(family for family in FAMILIES if family not in ("conv", "statistics"))
"""Families whose calls make the bits of the model's own; those that invert a normalisation are left out anyway."""
ALONE, PROGRAMS, LOCAL = 0.25, 0.25, 0.25
"""Shares of the time limit for the swap pass alone, for programs of the memory pass and for the local search."""
PARTS = (1, 2, 4, 6, 8)
"""So many eighths of what is cheaper to make again than to copy are tried as a set, the cheapest first."""
MEMORY = 0.05
"""Share of the time limit for one plan of the memory pass in the memory of the device."""


def plan_joint(
    trace: Trace,
    machine: Machine,
    *,
    memory: Memory | None = None,
    reserve_bytes: int = 0,
    options: JointOptions = DEFAULTS,
    inputs: dict[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan], None] | None = None,
) -> Plan:
    """The fastest plan found for one iteration of `trace` that may copy tensors out and back or make them again.

    A swap plan like any other; where ops run more than once or by another call, its `decisions.runs` say so and its
    problem is that of the unrolled trace. Arguments and errors are those of `planner.swap.planning.plan_swap`.
    """
    whole = prepared(problem_from_trace(trace, machine, reserve_bytes), memory)
    inputs = inputs if inputs is not None else {"trace": InputRef(file="trace", digest=digest(trace))}
    chosen = allowed(trace, options.families)
    try:
        bound, sets = joint_bound(chosen, whole.machine, reserve_bytes)
    except InfeasibleError:
        require_feasible(whole, options.swap.allocator)
        raise
    scorer = Scorer(chosen, whole.machine, reserve_bytes)
    joint = _Joint(scorer, bound, sets, options, inputs, on_progress, on_plan)
    with stop_on_signals() as stop:
        joint.plan(whole, (), "swap alone", ALONE)
        joint.programs(stop.is_set)
        for one in joint.ranked()[: options.finalists]:
            if not (stop.is_set() or joint.interrupted):
                joint.plan(one.problem, one.runs, one.name, (1 - ALONE - PROGRAMS - LOCAL) / options.finalists)
    return joint.finished()


class _Joint:
    """The best plan so far, and the steps that better it."""

    def __init__(
        self,
        scorer: Scorer,
        bound: Bound,
        sets: list[frozenset[str]],
        options: JointOptions,
        inputs: dict[str, InputRef],
        on_progress: Callable[[Progress], None] | None,
        on_plan: Callable[[Plan], None] | None,
    ) -> None:
        self.scorer, self.bound, self.sets = scorer, bound, sets
        self.options, self.inputs = options, inputs
        self.on_progress, self.on_plan = on_progress, on_plan
        self.began = time.monotonic()
        self.scored: list[Scored] = []
        self.best: Plan | None = None
        self.parts: dict[str, None] = {}
        self.interrupted = self.limit_fired = False
        self.failure: InfeasibleError | LimitError | None = None

    def seconds(self, share: float) -> float:
        return share * self.options.swap.time_limit_s

    def plan(self, problem: SwapProblem, runs: tuple[Run, ...], name: str, share: float) -> None:
        """The swap pass on one program."""

        def named(plan: Plan) -> Plan:
            return self.named(plan, runs, name)

        def tell(plan: Plan) -> None:
            if self.on_plan is not None and (self.best is None or time_of(plan) < time_of(self.best)):
                self.on_plan(named(plan))

        try:
            plan = plan_swap_problem(
                problem,
                options=dataclasses.replace(self.options.swap, time_limit_s=self.seconds(share)),
                inputs=self.inputs,
                on_progress=self.on_progress,
                on_plan=tell,
            )
        except (InfeasibleError, LimitError) as error:
            self.failure = self.failure or error
            return
        self.parts[name] = None
        self.interrupted = self.interrupted or plan.provenance.interrupted
        self.limit_fired = self.limit_fired or plan.provenance.limit_fired
        if self.best is None or time_of(plan) < time_of(self.best):
            self.best = named(plan)

    def programs(self, stop: Callable[[], bool]) -> None:
        """Score programs by quick plans."""

        def late(share: float) -> Callable[[], bool]:
            def ended() -> bool:
                fired = time.monotonic() - self.began > self.seconds(share)
                self.limit_fired = self.limit_fired or fired
                return fired or stop() or self.interrupted

            return ended

        step = self.scorer.trace, self.scorer.machine, self.scorer.reserve_bytes
        memory = dataclasses.replace(self.options.memory, families=None, time_limit_s=self.seconds(MEMORY))
        with suppress(InputError, InfeasibleError, LimitError):
            if not late(ALONE + PROGRAMS)():
                self.score(memory_alone(*step, memory), "memory plan")
        for runs, name in programs(*step, late(ALONE + PROGRAMS)):
            self.score(runs, name)
            if name == FASTEST or (name == OWN_CALLS and self.scorer.trace.mode != "train"):
                program = Program(self.scorer.trace, runs)
                for members in self.sets:
                    values = [value for value in program.gaps if value.tensor in members]
                    self.score(program.with_set(values), "linear program")
                cheap = cheaper(program, self.scorer.machine)
                for part in PARTS:
                    self.score(program.with_set(cheap[: len(cheap) * part // 8]), "prices")
        starts = self.ranked()[: self.options.starts]
        for place, start in enumerate(starts, start=1):
            until = late(ALONE + PROGRAMS + LOCAL * place / len(starts))
            self.scored.append(improve(self.scorer, start, self.options.evaluations // len(starts), until))

    def score(self, runs: tuple[Run, ...], name: str) -> None:
        found = self.scorer.score(runs, name)
        if found is not None:
            self.scored.append(found)

    def ranked(self) -> list[Scored]:
        """What was scored, each program once, the fastest first."""
        return sorted({one.runs: one for one in self.scored}.values(), key=lambda one: one.time_ns)

    def named(self, plan: Plan, runs: tuple[Run, ...], name: str) -> Plan:
        """The plan of a program with its runs, with the bound of swapping and recomputation together."""
        decisions = plan.decisions
        assert isinstance(decisions, SwapDecisions)
        lower = min(self.bound.time_ns, decisions.time_ns)
        gap = relative_gap(decisions.time_ns, lower)
        return msgspec.structs.replace(
            plan,
            decisions=msgspec.structs.replace(decisions, runs=runs),
            certificate=msgspec.structs.replace(
                plan.certificate,
                lower_bound=lower,
                argument=self.bound.argument,
                scope=self.bound.scope,
                gap=0.0 if gap is None else gap,
                optimal=decisions.time_ns == lower,
            ),
            provenance=msgspec.structs.replace(
                plan.provenance, method=f"{name}, {plan.provenance.method}", options=self.options.said
            ),
        )

    def finished(self) -> Plan:
        """The best plan. Raises what the swap pass raised where there is none."""
        if self.best is None:
            raise self.failure or LimitError("no plan was found within the limits; raise --time-limit")
        provenance = msgspec.structs.replace(
            self.best.provenance,
            parts=tuple(dict.fromkeys((*self.parts, *self.scorer.names, *self.best.provenance.parts))),
            limit_fired=self.limit_fired,
            interrupted=self.interrupted,
        )
        return msgspec.structs.replace(self.best, provenance=provenance)


def time_of(plan: Plan) -> int:
    """Nanoseconds of one iteration under a swap plan."""
    assert isinstance(plan.decisions, SwapDecisions)
    return plan.decisions.time_ns
