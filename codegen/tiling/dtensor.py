"""The target `dtensor`: PyTorch text that runs a tiling plan on one process per worker."""

from __future__ import annotations

from collections import Counter
from typing import Any

from treadle.codegen.interface import GenerationRequest, Made
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import TilingDecisions


def of_model(decisions: TilingDecisions) -> bool:
    """Whether the plan is one of a traced model, whose calls its trace has."""
    return any(node.operator == "rule" for node in decisions.problem.nodes)


def module(plan: Plan[TilingDecisions], request: GenerationRequest) -> Made:
    """The module of the plan. Raises InputError for a plan of a model without its trace, and for what a module cannot
    hold."""
    decisions = plan.decisions
    facts: dict[str, Any] = {
        "planned_ns": decisions.time_ns,
        "moved_bytes": decisions.moved_bytes,
        "mesh": [axis.size for axis in decisions.problem.mesh],
    }
    if not of_model(decisions):
        from treadle.codegen.tiling.dtensor_array import FILE_NAME as ARRAYS
        from treadle.codegen.tiling.dtensor_array import program_text

        return Made({ARRAYS: program_text(decisions)}, facts)

    from treadle.codegen.targets import require_trace
    from treadle.codegen.tiling.dtensor_model import FILE_NAME, step_text

    require_trace(plan, request.plan_file, request.trace)
    trace = request.trace
    if trace is None:
        raise InputError("found no trace, expected that of the plan", where=request.plan_file)
    facts |= {"autocast": trace.autocast} if trace.autocast else {}
    return Made({FILE_NAME: step_text(decisions, trace)}, facts, trace.entry)


def planned_collectives(decisions: TilingDecisions) -> dict[str, int]:
    """How often each collective of PyTorch runs on each worker, by its name in CommDebugMode."""
    names = {
        "allgather": "all_gather_into_tensor",
        "allreduce": "all_reduce",
        "reduce-scatter": "reduce_scatter_tensor",
    }
    counted: Counter[str] = Counter()
    for edge in decisions.edges:
        for step in edge.steps:
            gathered = decisions.problem.mesh[step.axis].alltoall == "gathered"
            if step.transfer == "alltoall":
                counted[names["allgather"] if gathered else "all_to_all_single"] += 1
            elif step.transfer in names:
                counted[names[step.transfer]] += 1
    return dict(sorted(counted.items()))
