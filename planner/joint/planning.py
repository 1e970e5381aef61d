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
from planner.joint.programs import FASTEST, OWN_CALLS, memory_alone, programs
from planner.joint.relaxation import joint_bound
from planner.joint.scoring import Scored, Scorer
from planner.joint.sets import Program
from planner.memory.planning import MemoryOptions
from planner.memory.problem import FAMILIES
from planner.plan import InputRef, Plan
from planner.solver import relative_gap
from planner.solver.interrupt import stop_on_signals
from planner.swap.decisions import Run, SwapDecisions
from planner.swap.extract import problem_from_trace
from planner.swap.planning import Memory, Progress, SwapOptions, plan_swap_problem, prepared
from planner.swap.problem import Machine, SwapProblem
from planner.trace import Trace


@dataclass(frozen=True)
class JointOptions:
    """`swap` are the options of the swap pass, its time limit that of everything. families: the families of other
    calls that a plan may use, None for all. evaluations: of the local search."""

    swap: SwapOptions = field(default_factory=SwapOptions)
    families: tuple[str, ...] | None = None
    evaluations: int = 300
    finalists: int = 2
    """So many programs get a whole swap search."""

    @property
    def said(self) -> dict[str, Any]:
        """For the provenance."""
        return {**self.swap.said, "families": self.families, "evaluations": self.evaluations, "with_recompute": True}


DEFAULTS = JointOptions()
SAME_BITS = tuple(family for family in FAMILIES if family not in ("conv", "statistics"))
"""Families whose calls make the bits of the model's own; those that invert a normalisation are left out anyway."""
ALONE, PROGRAMS, LOCAL = 0.25, 0.2, 0.3
"""Shares of the time limit for the swap pass alone, for programs of the memory pass and for the local search."""


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
    joint = _Joint(
        allowed(trace, options.families), whole.machine, reserve_bytes, options, inputs, on_progress, on_plan
    )
    with stop_on_signals() as stop:
        joint.plan(whole, (), "swap alone", ALONE)
        joint.programs(stop.is_set)
        for one in joint.finalists():
            if not (stop.is_set() or joint.interrupted):
                joint.plan(one.problem, one.runs, one.name, (1 - ALONE - PROGRAMS - LOCAL) / options.finalists)
    return joint.finished()


class _Joint:
    """The best plan so far, and the steps that better it."""

    def __init__(
        self,
        trace: Trace,
        machine: Machine,
        reserve_bytes: int,
        options: JointOptions,
        inputs: dict[str, InputRef],
        on_progress: Callable[[Progress], None] | None,
        on_plan: Callable[[Plan], None] | None,
    ) -> None:
        self.trace, self.machine, self.reserve_bytes = trace, machine, reserve_bytes
        self.options, self.inputs = options, inputs
        self.on_progress, self.on_plan = on_progress, on_plan
        self.began = time.monotonic()
        self.scorer = Scorer(trace, machine, reserve_bytes)
        self.scored: list[Scored] = []
        self.bound, self.sets = joint_bound(trace, machine, reserve_bytes)
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

        families = self.options.families
        memory = MemoryOptions(families=families, time_limit_s=self.seconds(0.1))
        with suppress(InputError, InfeasibleError, LimitError):
            if not late(ALONE + PROGRAMS)():
                self.score(memory_alone(self.trace, self.machine, self.reserve_bytes, memory), "memory plan")
        quick = MemoryOptions(method="heuristic", families=families, time_limit_s=self.seconds(0.1))
        for runs, name in programs(self.trace, self.machine, self.reserve_bytes, quick, late(ALONE + PROGRAMS)):
            self.score(runs, name)
            if name == FASTEST or (name == OWN_CALLS and self.trace.mode != "train"):
                program = Program(self.trace, runs)
                for members in self.sets:
                    values = [value for value in program.gaps if value.tensor in members]
                    self.score(program.with_set(values), "linear program")
        improve(self.scorer, self.options.evaluations, late(ALONE + PROGRAMS + LOCAL))
        if self.scorer.best is not None and self.scorer.best not in self.scored:
            self.scored.append(self.scorer.best)

    def score(self, runs: tuple[Run, ...], name: str) -> None:
        found = self.scorer.score(runs, name)
        if found is not None:
            self.scored.append(found)

    def finalists(self) -> list[Scored]:
        return sorted(self.scored, key=lambda one: (one.time_ns, one.name))[: self.options.finalists]

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
