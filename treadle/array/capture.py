"""A program as a problem of tiling: all that leads to its results, with loops unrolled.

Values that decide control flow are evaluated while the program is captured; the plan is one for that course of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from treadle.array.lazy import Array
from treadle.array.lowering import given
from treadle.array.node import LazyNode, Values, in_order
from treadle.array.settings import CAPTURING
from treadle.array.user import importable
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.problem import MAX_NODES, VERSION, ArrayNode, MeshAxis, TiledArray, TilingProblem
from treadle.runtime.tiling.functions import ArrayError

_SMALL = 4096
"""Elements of an array that a problem holds itself."""


def capture(
    function: Callable[..., Any], *args: Any, name: str | None = None, values: Path | None = None
) -> TilingProblem:
    """The graph of `function(*args)`, which returns an array, or several, for one worker and the model `exact`.

    Arrays of NumPy become lazy. Arrays that exist already and are large are stored as `.npy` files in the folder
    `values`, without which only their shapes are in the problem. Raises InputError for results that are no arrays,
    functions that a plan cannot name, and operations that need a shape which the data decide.
    """
    problem, given_values = captured(function, *args, name=name)
    if values is None:
        return problem
    values.mkdir(parents=True, exist_ok=True)
    stored = {each: values / f"{each}.npy" for each in given_values}
    for each, path in stored.items():
        np.save(path, given_values[each])
    nodes = [
        replace(node, params={"npy": str(stored[node.outputs[0]])}) if node.outputs[0] in stored else node
        for node in problem.nodes
    ]
    return replace(problem, nodes=tuple(nodes))


def captured(
    function: Callable[..., Any], *args: Any, name: str | None = None
) -> tuple[TilingProblem, dict[str, Values]]:
    """The problem, and the values of those of its arrays that are too large for it."""
    mark = CAPTURING.set(True)
    try:
        arguments = [given(each) if isinstance(each, np.ndarray) else each for each in args]
        results = list(_arrays(function(*arguments), name_of_program(function)))
    finally:
        CAPTURING.reset(mark)
    code = getattr(function, "__code__", None)
    words = code.co_varnames[: code.co_argcount] if code is not None else ()
    names = {id(each.node): word for word, each in zip(words, arguments, strict=False) if isinstance(each, Array)}
    return problem_from([each.node for each in results], name or name_of_program(function), names)


def name_of_program(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "program"))


def _arrays(results: Any, name: str) -> Iterator[Array]:
    for each in results if isinstance(results, (tuple, list)) else (results,):
        if not isinstance(each, Array):
            raise InputError(f"{name} returns {type(each).__name__}, not an array of treadle.array or several")
        yield each


def problem_from(results: list[LazyNode], name: str, names: dict[int, str]) -> tuple[TilingProblem, dict[str, Values]]:
    """The problem whose outputs are `results`; `names` are those of arrays, by the identity of their nodes."""
    nodes = list(in_order(results, lambda node: node.operator == "value"))
    if len(nodes) > MAX_NODES:
        raise InputError(f"{name} has {len(nodes)} operations, more than {MAX_NODES}: capture a part of its loop")
    ids = _ids(nodes, names)
    values = {ids[id(node)]: node.value for node in nodes if node.operator == "value" and node.value is not None}
    large = {each: value for each, value in values.items() if value.size > _SMALL}
    problem = TilingProblem(
        version=VERSION,
        name=name,
        model="exact",
        mesh=(MeshAxis(name="workers", size=1),),
        arrays=tuple(
            TiledArray(
                id=ids[id(node)],
                shape=node.shape,
                dtype=node.dtype.name,
                item_bytes=node.dtype.itemsize,
                masked=node.ragged is not None,
            )
            for node in nodes
        ),
        nodes=tuple(_recorded(node, ids, large) for node in nodes),
        outputs=tuple(dict.fromkeys(ids[id(node)] for node in results)),
    )
    return problem, large


def _recorded(node: LazyNode, ids: dict[int, str], large: dict[str, Values]) -> ArrayNode:
    if node.operator == "filter" and node.function != "filter":
        raise ArrayError(f"{node.function}: its data decide its shape, which a plan needs before", where=node.line)
    if node.local is not None and not importable(node.function, node.local):
        raise ArrayError(
            f"the function {node.function} cannot be imported under that name; define it at the top of a module",
            where=node.line,
        )
    params = node.params
    if node.operator == "value" and ids[id(node)] not in large and node.value is not None:
        params = {"data": _plain(node.value)}
    return ArrayNode(
        id=f"{ids[id(node)]}.{node.operator}",
        operator=node.operator,
        function=node.function,
        inputs=tuple(ids[id(each)] for each in node.inputs),
        outputs=(ids[id(node)],),
        axes=node.axes,
        params=params,
        update="all" if node.update == "all" else "each",
    )


def _plain(values: Values) -> list[Any]:
    """The elements as JSON has them: those that it lacks as text."""
    flat: list[Any] = values.reshape(-1).tolist()
    if values.dtype.kind == "c" or (values.dtype.kind == "f" and not np.isfinite(values).all()):
        return [str(each) for each in flat]
    return flat


def _ids(nodes: Iterable[LazyNode], names: dict[int, str]) -> dict[int, str]:
    """`x`, or the function and a number: `add1`, `add2`; unique, and safe as names in programs."""
    count: Counter[str] = Counter()
    taken, found = set(names.values()), {}
    for node in nodes:
        word = names.get(id(node))
        if word is None:
            stem = re.sub(r"\W", "_", node.function.rsplit(":", 1)[-1].rsplit(".", 1)[-1])
            while word is None or word in taken:
                count[stem] += 1
                word = f"{stem}{count[stem]}"
        taken.add(word)
        found[id(node)] = word
    return found
