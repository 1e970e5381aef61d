"""Programs to start from: plans of the memory pass at many budgets; swapping covers what does not fit.

At the memory of the device this is the memory pass in isolation. At larger budgets a plan recomputes less and the rest
is swapped; at smaller ones it leaves the memory that a pool loses to rounding. Calls with more workspace than the
model's own are faster but leave less memory, so there is a second trace with twice the workspace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace as with_options
from fractions import Fraction
from functools import cached_property

from msgspec.structs import replace

from treadle.planner.documents.trace import OpRun, Trace
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.job.recompute_swap.memory_pass import BRIEF, LONG, Ended, is_small, schedule_within
from treadle.planner.job.recompute_swap.memory_runs import allowed, memory_problem, most_workspace, runs_of
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.lower import RecomputeSchedule, store_all
from treadle.planner.passes.memory.planning import MemoryOptions, decide, plan_memory, with_budget
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.swap.problem import SwapMachine

SHARES = tuple(Fraction(share, 100) for share in (100, 90, 115, 80, 130, 150, 70, 175))
"""Budgets of memory plans, in shares of the memory for tensors, the most promising first."""
WORKSPACES = (1, 2)
"""The most workspace, in multiples of that of the model's own calls."""
SHORT = 200
"""Operators up to which the size of a step's memory problem is computed in moments."""
EACH = 0.3
"""A memory plan at one budget gets this share of the time that is left for all of them."""


class Side:
    """A trace with the calls of one workspace, as the memory pass sees it."""

    def __init__(self, trace: Trace, machine: SwapMachine, reserve_bytes: int) -> None:
        self.trace = trace
        self.arena_bytes = machine.memory_bytes - reserve_bytes - most_workspace(trace)

    @cached_property
    def problem(self) -> MemoryProblem:
        """With no budget. Raises InputError for a trace that the memory pass does not cover."""
        return replace(memory_problem(self.trace), budget_bytes=1)

    @cached_property
    def everything(self) -> MemoryDecisions:
        """The fastest calls, and nothing recomputed."""
        return decide(self.problem, store_all(self.problem))

    def within(self, budget: int) -> MemoryProblem:
        return replace(self.problem, budget_bytes=max(1, budget))

    def runs(self, schedule: RecomputeSchedule) -> tuple[OpRun, ...]:
        return runs_of(decide(self.problem, schedule), self.trace)


def sides(trace: Trace, machine: SwapMachine, reserve_bytes: int) -> list[Side]:
    """One for each of WORKSPACES, one for those that allow the same calls."""
    own = most_workspace(replace(trace, ops=tuple(replace(op, implementations=()) for op in trace.ops)))
    found: list[Trace] = []
    for factor in WORKSPACES:
        one = allowed(trace, limit=factor * own)
        if one not in found:
            found.append(one)
    return [Side(one, machine, reserve_bytes) for one in found]


def is_short(side: Side) -> bool:
    """Whether the memory pass has a plan of the step in a moment."""
    return len(side.trace.ops) <= SHORT and is_small(side.problem)


def memory_alone(found: list[Side], options: MemoryOptions, until: float, ended: Ended) -> tuple[OpRun, ...]:
    """The runs of the memory pass in isolation, in the memory of the device as a swap plan counts it: those of the
    fastest of its plans for the workspaces that calls may have.

    until: on time.monotonic's clock. Small problems get the search of `options`, which overruns by little; others end
    when `ended` says yes. Raises InputError for a trace that the memory pass does not cover, InfeasibleError or
    LimitError where it has no plan.
    """
    plans: list[tuple[int, tuple[OpRun, ...]]] = []
    failure: InfeasibleError | LimitError | None = None
    for place, side in enumerate(found):
        if plans and ended():
            break
        share = until - (until - time.monotonic()) / 3 if place < len(found) - 1 else until
        try:
            if is_small(side.problem):
                limited = with_options(options, time_limit_s=max(0.1, share - time.monotonic()))
                decided = plan_memory(with_budget(side.problem, max(1, side.arena_bytes)), options=limited).decisions
            else:
                schedule = schedule_within(side.within(side.arena_bytes), _either(ended, share), LONG)
                if schedule is None:
                    raise LimitError(f"the memory pass found no plan of {side.trace.name} in its time")
                decided = decide(side.problem, schedule)
        except (InfeasibleError, LimitError) as error:
            failure = failure or error
            continue
        plans.append((decided.objective_ns, runs_of(decided, side.trace)))
    if failure is not None and not plans:
        raise failure
    return min(plans, key=lambda plan: plan[0])[1]


def memory_plans(found: list[Side], until: float, ended: Ended) -> Iterator[tuple[tuple[OpRun, ...], str]]:
    """Runs of the whole step in memory plans at the budgets of SHARES, and what they are called.

    Raises InputError for a trace that the memory pass does not cover.
    """
    for share in SHARES:
        for side in found:
            if ended():
                return
            budget = int(side.arena_bytes * share)
            if 0 < budget < side.everything.exact_peak_bytes:
                left = until - time.monotonic()
                schedule = schedule_within(side.within(budget), _either(ended, until - (1 - EACH) * left), BRIEF)
                if schedule is not None:
                    yield side.runs(schedule), f"memory plan at {float(share):g}x"


def _either(ended: Ended, until: float) -> Ended:
    return lambda: ended() or time.monotonic() > until
