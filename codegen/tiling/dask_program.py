"""A plan of arrays as a Python program for Dask: a line for each operator, and one for each array that is moved after
it was made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treadle.codegen.interface import Made
from treadle.codegen.python_text import PythonTree, layout, literal
from treadle.codegen.templates import docstring, quote
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import NodeTiling, TilingDecisions
from treadle.planner.passes.tiling.problem import ArrayNode, ArrayTiling, TiledArray
from treadle.planner.passes.tiling.tile_maps import first_map

FILE_NAME = "program.py"
CALLS = {
    "newarray": "new",
    "value": "new",
    "map": "mapped",
    "fold": "folded",
    "scan": "scanned",
    "join_update": "joined",
    "slice": "viewed",
    "swapaxis": "viewed",
    "filter": "viewed",
}
FOLDS = ("folded", "joined", "scanned")


def dask_program(plan: Plan[TilingDecisions], where: str) -> Made:
    """The program and the facts of its manifest. Raises InputError for a plan of a model."""
    decisions = plan.decisions
    if other := next((node for node in decisions.problem.nodes if node.operator == "rule"), None):
        message = f"{other.id} is an operator of a model, which Dask does not run; generate with --target dtensor"
        raise InputError(message, where=where)
    text = "".join(f"{line}\n" for line in _lines(decisions))
    facts = {
        "workers": [axis.size for axis in decisions.problem.mesh],
        "arrays": len(decisions.tilings),
        "moved_bytes": decisions.moved_bytes,
    }
    return Made({FILE_NAME: text}, facts)


def _lines(decisions: TilingDecisions) -> Iterator[str]:
    problem = decisions.problem
    mesh = [axis.size for axis in problem.mesh]
    arrays = {array.id: array for array in problem.arrays}
    name, said = docstring(problem.name), " x ".join(map(str, mesh))
    yield f'"""{name} on Dask, cut over {said} workers.'
    yield ""
    moved = format_bytes(decisions.moved_bytes)
    yield f"{many(len(problem.nodes), 'operator')}; the plan moves {moved} between workers."
    yield '"""'
    yield ""
    used = sorted({CALLS[node.operator] for node in problem.nodes} | {"moved"})
    for module, names in (
        ("dask_arrays", [each for each in used if each not in FOLDS]),
        ("dask_folds", [each for each in used if each in FOLDS]),
    ):
        if names:
            yield f"from treadle.runtime.tiling.{module} import {', '.join(names)}"
    yield ""
    yield f"NAME = {quote(problem.name)}"
    yield from layout("MESH = ", literal(mesh), 0)
    yield from layout("NODES = ", literal([_row(node, arrays[node.outputs[0]], mesh) for node in problem.nodes]), 0)
    yield ""
    yield ""
    yield "def program(values):"
    yield f"    {quote('The results by name, as tiled arrays of Dask; `values` has the arrays that the plan lacks.')}"
    numbers: dict[str, int] = {}
    tilings = dict(zip(arrays, decisions.tilings, strict=True))
    for number, (node, tiled) in enumerate(zip(problem.nodes, decisions.nodes, strict=True)):
        yield from layout(f"t{number} = ", _call(number, node, tiled, tilings[node.outputs[0]], numbers), 4)
        numbers[node.outputs[0]] = number
        if _needs_move(node, tiled, tilings[node.outputs[0]]):
            tiling = literal(list(tilings[node.outputs[0]]))
            yield from layout(f"t{number} = ", PythonTree("moved(", (f"t{number}", "MESH", tiling)), 4)
    results = tuple(f"{quote(name)}: t{numbers[name]}" for name in dict.fromkeys(problem.outputs))
    yield from layout("return ", PythonTree("{", results, "}"), 4)


def _row(node: ArrayNode, array: TiledArray, mesh: list[int]) -> dict[str, Any]:
    return {
        "id": node.id,
        "operator": node.operator,
        "function": node.function,
        "axes": list(node.axes),
        "params": node.params,
        "update": node.update,
        "array": array.id,
        "shape": list(array.shape),
        "dtype": array.dtype,
        "mesh": mesh,
    }


def _call(number: int, node: ArrayNode, tiled: NodeTiling, tiling: ArrayTiling, numbers: dict[str, int]) -> PythonTree:
    """The call of an operator with its inputs and the tilings that it needs."""
    call, (makes,) = CALLS[node.operator], tiled.makes
    inputs = PythonTree("[", tuple(f"t{numbers[name]}" for name in node.inputs), "]")
    reads = literal([list(each) for each in tiled.reads])
    more: dict[str, tuple[str | PythonTree, ...]] = {
        "new": ("values", literal(list(makes))),
        "mapped": (inputs, literal(list(makes))),
        "folded": (inputs, literal(list(tiled.reads[0]) if tiled.reads else []), literal(_first(tiling))),
        "scanned": (inputs, literal(list(tiled.reads[0]) if tiled.reads else [])),
        "joined": (inputs, reads, literal(list(makes)), literal(_first(tiling))),
        "viewed": (inputs,),
    }
    return PythonTree(f"{call}(", (f"NODES[{number}]", *more[call]))


def _first(tiling: ArrayTiling) -> list[str]:
    """The tiling of the first copy."""
    return [first_map(each) for each in tiling]


def _needs_move(node: ArrayNode, tiled: NodeTiling, tiling: ArrayTiling) -> bool:
    """Whether the array has another tiling, or more copies, than its operator leaves it in."""
    call = CALLS[node.operator]
    if call == "viewed":
        return tiled.makes[0] != tiling and _first(tiling) == list(tiling)
    made = list(tiled.makes[0]) if call in ("new", "mapped") else _first(tiling)
    return call == "scanned" or made != list(tiling)
