"""Two rewrites of a problem that leave its results as they are: maps run inside the map, or the fold, that reads them.

A map runs inside its only reader where both have one shape, so that no element is computed twice or moved sooner. The
arrays between them disappear. A fold takes one array, so only maps of one array run inside it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec.structs import replace

from treadle.planner.passes.tiling.problem import ArrayNode, TiledArray, TilingProblem

Steps = list[dict[str, Any]]
"""Calls of functions: `inputs` are numbers of operands, the arrays of the node first, then results of earlier steps."""
FUSED = "fused"


def fused_maps(problem: TilingProblem) -> TilingProblem:
    """`problem` with every map inside the map that is its only reader."""
    return _fused(problem, "map")


def fused_folds(problem: TilingProblem) -> TilingProblem:
    """`problem` with every map of one array inside the fold that is its only reader."""
    return _fused(problem, "fold")


def _fused(problem: TilingProblem, reader: str) -> TilingProblem:
    arrays = {array.id: array for array in problem.arrays}
    readers = Counter(name for node in problem.nodes for name in set(node.inputs))
    nodes: dict[str, ArrayNode] = {}
    for node in problem.nodes:
        inside = [
            nodes[name]
            for name in dict.fromkeys(node.inputs if node.operator == reader else ())
            if readers[name] == 1 and name not in problem.outputs and _fits(nodes[name], node, arrays)
        ]
        for each in inside:
            del nodes[each.outputs[0]]
        joint = _merged(node, inside, arrays) if inside else node
        nodes.update(dict.fromkeys(joint.outputs, joint))
    ordered = tuple(dict.fromkeys(node.id for node in nodes.values()))
    by_id = {node.id: node for node in nodes.values()}
    made = {name for node in nodes.values() for name in node.outputs}
    return replace(
        problem,
        arrays=tuple(array for array in problem.arrays if array.id in made),
        nodes=tuple(by_id[name] for name in ordered),
    )


def _fits(inner: ArrayNode, node: ArrayNode, arrays: dict[str, TiledArray]) -> bool:
    if inner.operator != "map" or arrays[inner.outputs[0]].fixed is not None:
        return False
    shape = arrays[inner.outputs[0]].shape
    if node.operator == "map":
        return shape == arrays[node.outputs[0]].shape
    return len(set(inner.inputs)) == 1 and arrays[inner.inputs[0]].shape == shape


def _merged(node: ArrayNode, inside: list[ArrayNode], arrays: dict[str, TiledArray]) -> ArrayNode:
    """`node` with the maps `inside` as its first steps."""
    within = {each.outputs[0] for each in inside}
    inputs: list[str] = []
    for name in (*(name for each in inside for name in each.inputs), *node.inputs):
        if name not in inputs and name not in within:
            inputs.append(name)
    steps: Steps = []
    place = {name: number for number, name in enumerate(inputs)}
    for each in inside:
        place[each.outputs[0]] = _appended(steps, each, place, len(inputs), arrays)
    if node.operator == "fold":
        return replace(node, inputs=tuple(inputs), params={**node.params, "before": steps})
    _appended(steps, node, place, len(inputs), arrays)
    return replace(node, function=FUSED, inputs=tuple(inputs), params={"steps": steps})


def _appended(
    steps: Steps, node: ArrayNode, place: dict[str, int], operands: int, arrays: dict[str, TiledArray]
) -> int:
    """The number of what `node` makes, after its own steps are among `steps`."""
    if node.function != FUSED:
        call = {"function": node.function, "inputs": [place[name] for name in node.inputs], "params": node.params}
        steps.append({**call, "dtype": arrays[node.outputs[0]].dtype})
        return operands + len(steps) - 1
    own, before = len(node.inputs), operands + len(steps)
    for step in node.params["steps"]:
        moved = [place[node.inputs[each]] if each < own else before + each - own for each in step["inputs"]]
        steps.append({**step, "inputs": moved})
    return operands + len(steps) - 1
