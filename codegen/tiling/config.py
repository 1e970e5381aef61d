"""A plan as one text for array libraries of any make: the tiling of every array, and what is moved when."""

from __future__ import annotations

from typing import Any

from treadle.codegen.interface import Made
from treadle.codegen.json_text import json_text
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.tiling.decisions import TiledEdge, TilingDecisions

FILE_NAME = "tiling.json"


def configuration(plan: Plan[TilingDecisions]) -> Made:
    """The text, and the facts of its manifest."""
    decisions = plan.decisions
    facts = {
        "planned_ns": decisions.time_ns,
        "workers": [axis.size for axis in decisions.problem.mesh],
        "arrays": len(decisions.tilings),
        "moved_bytes": decisions.moved_bytes,
        "memory_bytes": decisions.memory_bytes,
    }
    return Made({FILE_NAME: json_text(config_of(decisions))}, facts)


def config_of(decisions: TilingDecisions) -> dict[str, Any]:
    """Arrays and operators in the order of the problem; `before` and `after` an operator are the moves that it needs,
    each a list of steps along an axis of the mesh, and the tiling that the array has after each."""
    problem = decisions.problem
    return {
        "program": problem.name,
        "mesh": [{"axis": axis.name, "workers": axis.size} for axis in problem.mesh],
        "arrays": [
            {"array": array.id, "shape": [*array.shape], "dtype": array.dtype, "tiling": [*tiling]}
            for array, tiling in zip(problem.arrays, decisions.tilings, strict=True)
        ],
        "operators": [
            {
                "operator": node.id,
                "kind": node.operator,
                "function": node.function,
                **({"axes": [*node.axes]} if node.axes else {}),
                **({"params": node.params} if node.params else {}),
                "inputs": [*node.inputs],
                "reads": [[*each] for each in tiled.reads],
                "outputs": [*node.outputs],
                "makes": [[*each] for each in tiled.makes],
            }
            for node, tiled in zip(problem.nodes, decisions.nodes, strict=True)
        ],
        "moves": [_moved(edge) for edge in decisions.edges],
        "outputs": [*problem.outputs],
    }


def _moved(edge: TiledEdge) -> dict[str, Any]:
    """A move before the operator reads its input of that number, or after it has made the array."""
    when = {"after": edge.node} if edge.reading is None else {"before": edge.node, "input": edge.reading}
    steps = [{"transfer": step.transfer, "axis": step.axis, "tiling": [*step.tiling]} for step in edge.steps]
    return {"array": edge.array, **when, "steps": steps, "bytes": edge.bytes}
