"""Plans as the command line makes them: from documents, which the plan names as its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treadle.planner.documents.collective import Collective
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.pattern import Pattern
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.sketch import Sketch
from treadle.planner.documents.store import digest
from treadle.planner.documents.trace import Trace
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.planning import (
    CollectiveOptions,
    make_request,
    plan_collective,
    references,
)
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.extract.problem import problem_from_trace
from treadle.planner.passes.memory.planning import Budget, MemoryOptions, plan_memory, with_budget
from treadle.planner.solver import Progress


def memory_plan(
    trace: Trace, budget: Budget, options: MemoryOptions | None = None, **others: Any
) -> Plan[MemoryDecisions]:
    options = options or MemoryOptions()
    problem = problem_from_trace(trace, hold_gradients=options.hold_gradients)
    inputs = {"trace": InputRef(file="trace", digest=digest(trace))}
    return plan_memory(with_budget(problem, budget, options), options=options, inputs=inputs, **others)


def collective_plan(
    collective: Collective,
    hardware: Hardware,
    sketch: Sketch,
    *,
    size_bytes: int | None = None,
    root: int = 0,
    pattern: Pattern | None = None,
    files: Mapping[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Plan[CollectiveDecisions]:
    request = make_request(collective, hardware, sketch, size_bytes, root, pattern)
    inputs = references(hardware, sketch, pattern, files or {})
    return plan_collective(request, options=CollectiveOptions(**options), inputs=inputs, on_progress=on_progress)
