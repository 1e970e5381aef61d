"""Plans of traces as the command line makes them: the problem of the trace, which the plan names as its input."""

from __future__ import annotations

from typing import Any

from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.store import digest
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.extract.problem import problem_from_trace
from treadle.planner.passes.memory.planning import Budget, MemoryOptions, plan_memory, with_budget


def memory_plan(
    trace: Trace, budget: Budget, options: MemoryOptions | None = None, **others: Any
) -> Plan[MemoryDecisions]:
    options = options or MemoryOptions()
    problem = problem_from_trace(trace, hold_gradients=options.hold_gradients)
    inputs = {"trace": InputRef(file="trace", digest=digest(trace))}
    return plan_memory(with_budget(problem, budget, options), options=options, inputs=inputs, **others)
