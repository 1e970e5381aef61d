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
from planner.memory.decisions import MemoryDecisions
from planner.memory.lower import store_all
from planner.memory.methods.quick import solve_quick
from planner.memory.planning import MemoryOptions, decide, plan_problem
from planner.memory.problem import MemoryProblem
from planner.swap.decisions import Run
from planner.swap.problem import Machine
from planner.trace import Trace
from planner.unrolling import plain_runs

SHARES = tuple(Fraction(share, 100) for share in (100, 90, 115, 80, 130, 150, 70, 175))
"""Budgets of memory plans, in shares of the memory for tensors, the most promising first."""
OWN_CALLS, FASTEST = "own calls", "fastest calls"
MOST_PAIRS = 1_500_000
"""Forward times backward nodes up to which the memory pass is asked."""
WORKSPACES = (1, 2)
"""The most workspace, in multiples of that of the model's own calls."""


def own_calls(trace: Trace) -> Trace:
    """`trace` without any other implementations."""
    return replace(trace, ops=tuple(replace(op, implementations=()) for op in trace.ops))


def limited(trace: Trace) -> list[Trace]:
    """The trace with what calls may have of each of WORKSPACES; one for those that allow the same calls."""
    own = most_workspace(own_calls(trace))
    found: list[Trace] = []
    for factor in WORKSPACES:
        one = allowed(trace, limit=factor * own)
        if one not in found:
            found.append(one)
    return found


def memory_alone(trace: Trace, machine: Machine, reserve_bytes: int, options: MemoryOptions) -> tuple[Run, ...]:
    """What the memory pass by itself runs in the memory of the device, counted as a swap plan counts it: the fastest of
    its plans for the workspaces that calls may have.

    Raises InputError for a trace that the memory pass does not cover, InfeasibleError or LimitError where it has no
    plan.
    """
    found: list[tuple[int, tuple[Run, ...]]] = []
    failure: InfeasibleError | LimitError | None = None
    for one in limited(trace):
        budget = machine.memory_bytes - reserve_bytes - most_workspace(one)
        try:
            problem = memory_problem(one)
            if too_large(problem):
                raise LimitError(f"{trace.name} is too large for the memory pass")
            plan = plan_problem(problem, budget=max(1, budget), options=options)
        except (InfeasibleError, LimitError) as error:
            failure = failure or error
            continue
        assert isinstance(plan.decisions, MemoryDecisions)
        found.append((plan.decisions.objective_ns, runs_of(plan.decisions, one)))
    if failure is not None and not found:
        raise failure
    return min(found, key=lambda one: one[0])[1]


def programs(
    trace: Trace, machine: Machine, reserve_bytes: int, stop: Callable[[], bool]
) -> Iterator[tuple[tuple[Run, ...], str]]:
    """Runs of the whole step, and what they are called: the plain step first, then the memory pass's quick plans."""
    yield plain_runs(trace), OWN_CALLS
    problems: list[tuple[Trace, MemoryProblem]] = []
    for one in limited(trace):
        try:
            problem = memory_problem(one)
        except InputError:
            return
        yield runs_of(decide(replace(problem, budget_bytes=1), store_all(problem)), one), FASTEST
        problems.append((one, problem))
    for one, problem in problems:
        arena = machine.memory_bytes - reserve_bytes - most_workspace(one)
        most = decide(replace(problem, budget_bytes=1), store_all(problem)).exact_peak_bytes
        for share in SHARES:
            budget = int(arena * share)
            if stop() or too_large(problem):
                return
            if 0 < budget < most:
                within = replace(problem, budget_bytes=budget)
                schedule = solve_quick(within)
                if schedule is not None:
                    yield runs_of(decide(within, schedule), one), f"memory plan at {float(share):g}x"


def too_large(problem: MemoryProblem) -> bool:
    """Whether plans of the memory pass take minutes each."""
    return len(problem.fwd) * len(problem.bwd) > MOST_PAIRS
