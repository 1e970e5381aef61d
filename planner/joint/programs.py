"""Programs to start from: plans of the memory pass at many budgets, whatever does not fit left to swapping.

In the memory of the device alone a memory plan is the memory pass by itself. With more than that it recomputes less
and the rest is swapped. With less it leaves the room that a pool loses to rounding. Calls with more workspace than the
model's own are faster but leave less memory, so there is a second trace with twice the workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from msgspec.structs import replace

from planner.errors import InfeasibleError, InputError, LimitError
from planner.joint.memory_runs import allowed, memory_problem, most_workspace, runs_of
from planner.memory.lower import store_all
from planner.memory.planning import MemoryOptions, decide, plan_problem
from planner.memory.problem import MemoryProblem
from planner.swap.decisions import Run
from planner.swap.problem import Machine
from planner.trace import Trace
from planner.unrolling import plain_runs

SHARES = tuple(Fraction(share, 100) for share in (100, 90, 115, 80, 130, 150, 70, 175))
"""Budgets of memory plans, in shares of the memory for tensors, the most promising first."""
OWN_CALLS, FASTEST = "own calls", "fastest calls"
WORKSPACES = (1, 2)
"""The most workspace, in multiples of that of the model's own calls."""


def own_calls(trace: Trace) -> Trace:
    """`trace` without any other implementations."""
    return replace(trace, ops=tuple(replace(op, implementations=()) for op in trace.ops))


def memory_alone(trace: Trace, machine: Machine, reserve_bytes: int, options: MemoryOptions) -> tuple[Run, ...]:
    """What the memory pass by itself runs in the memory of the device, counted as a swap plan counts it: the fastest of
    its plans for the workspaces that calls may have.

    Raises InputError for a trace that the memory pass does not cover, InfeasibleError or LimitError where it has no
    plan.
    """
    own = most_workspace(own_calls(trace))
    found: list[tuple[int, int, tuple[Run, ...]]] = []
    failure: InfeasibleError | LimitError | None = None
    for number, factor in enumerate(WORKSPACES):
        limited = allowed(trace, limit=factor * own)
        budget = machine.memory_bytes - reserve_bytes - most_workspace(limited)
        try:
            plan = plan_problem(memory_problem(limited), budget=max(1, budget), options=options)
        except (InfeasibleError, LimitError) as error:
            failure = failure or error
            continue
        found.append((plan.decisions.objective_ns, number, runs_of(plan.decisions, limited)))  # type: ignore[union-attr,arg-type]
    if not found and failure is not None:
        raise failure
    return min(found)[2]


def programs(
    trace: Trace, machine: Machine, reserve_bytes: int, options: MemoryOptions, stop: Callable[[], bool]
) -> Iterator[tuple[tuple[Run, ...], str]]:
    """Runs of the whole step, and what they are called; the plain step first."""
    yield plain_runs(trace), OWN_CALLS
    own = most_workspace(own_calls(trace))
    for factor in WORKSPACES:
        limited = allowed(trace, limit=factor * own)
        try:
            problem = memory_problem(limited)
        except InputError:
            return
        arena = machine.memory_bytes - reserve_bytes - most_workspace(limited)
        everything = decide(replace(problem, budget_bytes=1), store_all(problem))
        yield runs_of(everything, limited), FASTEST
        for share in SHARES:
            budget = int(arena * share)
            if stop():
                return
            if 0 < budget < everything.exact_peak_bytes:
                runs = _planned(problem, budget, limited, options)
                if runs is not None:
                    yield runs, f"memory plan at {share}"


def _planned(problem: MemoryProblem, budget: int, trace: Trace, options: MemoryOptions) -> tuple[Run, ...] | None:
    try:
        plan = plan_problem(problem, budget=budget, options=options)
    except (InfeasibleError, LimitError):
        return None
    return runs_of(plan.decisions, trace)  # type: ignore[arg-type]
