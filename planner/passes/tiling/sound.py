"""Whether the nodes of a problem are calls that its cost model covers: arguments, axes, shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from operator import gt

from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.graph import FORBIDDEN
from treadle.planner.passes.tiling.problem import ArrayNode, TilingProblem
from treadle.planner.passes.tiling.tile_maps import region

MOST_AXES = 10
AXES = {"fold": (1, 9), "scan": (1, 1), "swapaxis": (2, 2)}
INPUTS = {"newarray": (0, 0), "value": (0, 0), "map": (1, 99), "filter": (1, 2), "join_update": (1, 99)}


def check_problem(problem: TilingProblem) -> None:
    """Raises InputError for the first node or array that the graph of the paper has no place for."""
    shapes = {array.id: array.shape for array in problem.arrays}
    for array in problem.arrays:
        if array.like is not None:
            raise InputError(f"found like {array.like}, expected it in a problem with rules only", where=array.id)
        if len(array.shape) > MOST_AXES:
            raise InputError(f"found {len(array.shape)} axes, expected at most {MOST_AXES}", where=array.id)
    check_calls(problem)
    elements = sum(prod(shapes[name]) for node in problem.nodes for name in (*node.inputs, *node.outputs))
    if elements * problem.mesh[0].size >= FORBIDDEN:
        raise InputError(
            f"found arrays of {elements} elements for {problem.mesh[0].size} workers, expected a product below "
            f"{FORBIDDEN}",
            where=problem.name,
        )


def check_calls(problem: TilingProblem) -> None:
    """Raises InputError for the first node of an operator of arrays that is no call of it."""
    shapes = {array.id: array.shape for array in problem.arrays}
    for node in problem.nodes:
        if node.operator != "rule":
            for found, expected in _wrong(node, shapes):
                raise InputError(f"found {found}, expected {expected}", where=f"{node.operator} {node.id}")


def _wrong(node: ArrayNode, shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, str]]:
    inputs = [shapes[name] for name in node.inputs]
    least, most = INPUTS.get(node.operator, (1, 1))
    if len(node.outputs) != 1:
        yield f"{len(node.outputs)} results", "1"
        return
    if not least <= len(inputs) <= most:
        yield f"{len(inputs)} inputs", str(least) if least == most else f"{least} to {most}"
        return
    result = shapes[node.outputs[0]]
    if node.operator == "map":
        for shape in inputs:
            if not broadcasts(shape, result):
                yield f"an input of shape {shape}", f"one that broadcasts to {result}"
    if node.operator == "join_update":
        if len(node.axes) != len(inputs):
            yield f"{len(node.axes)} axes", f"{len(inputs)}, one for each input"
            return
        for shape, axis in zip(inputs, node.axes, strict=True):
            if not -1 <= axis < len(shape):
                yield f"axis {axis} of shape {shape}", "-1 or one of its axes"
        if node.function == "matmul" and not multiplies(inputs, result):
            yield f"a matrix product of shapes {inputs} into {result}", "shapes that fit"
    least, most = AXES.get(node.operator, (0, 99))
    if node.operator in AXES:
        rank = len(inputs[0])
        sound = least <= len(node.axes) <= most and all(-rank <= axis < rank for axis in node.axes)
        if not sound or len({axis % rank for axis in node.axes}) < len(node.axes):
            yield f"axes {node.axes} of an array of rank {rank}", "axes that it has, each once"
            return
    if node.operator == "fold" and result not in folded(inputs[0], node.axes):
        yield f"a result of shape {result}", " or ".join(map(str, folded(inputs[0], node.axes)))
    if node.operator == "scan" and result != inputs[0]:
        yield f"a result of shape {result}", str(inputs[0])
    if node.operator in ("filter", "slice", "swapaxis") and len(result) != len(inputs[0]):
        yield f"a view of rank {len(result)}", f"that of its source, {len(inputs[0])}"
        return
    if node.operator == "slice" and result != sliced(node, inputs[0]):
        yield f"a result of shape {result}", f"{sliced(node, inputs[0])}, that of the region"
    if node.operator == "slice" and any(map(gt, region(node, len(result))[1], inputs[0])):
        yield f"a region that ends at {region(node, len(result))[1]}", f"one within {inputs[0]}"
    if node.operator == "swapaxis" and result != swapped(inputs[0], node.axes):
        yield f"a result of shape {result}", str(swapped(inputs[0], node.axes))
    if node.operator == "filter" and inputs[1:] and inputs[1] != inputs[0][:1]:
        yield f"a mask of shape {inputs[1]}", str(inputs[0][:1])


def sliced(node: ArrayNode, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a region of an array, as far as the region lies in it."""
    starts, stops, steps = region(node, len(shape))
    ends = (min(stop, size) for stop, size in zip(stops, shape, strict=True))
    return tuple(max(0, -(-(end - start) // step)) for start, end, step in zip(starts, ends, steps, strict=True))


def multiplies(inputs: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> bool:
    """Whether NumPy's matrix product of two arrays is one of shape `result`."""
    if len(inputs) != 2 or not all(inputs):
        return False
    one, other = inputs
    rows, columns = one[-2:-1], other[-1:] if len(other) > 1 else ()
    batch = result[: len(result) - len(rows) - len(columns)]
    return (
        one[-1] == (other[-2] if len(other) > 1 else other[0])
        and result == (*batch, *rows, *columns)
        and broadcasts(one[:-2], batch)
        and broadcasts(other[:-2], batch)
    )


def swapped(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape after two axes have changed places."""
    found = list(shape)
    found[axes[0]], found[axes[1]] = shape[axes[1]], shape[axes[0]]
    return tuple(found)


def broadcasts(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Whether broadcasting makes `result` of `shape`."""
    ends = result[len(result) - len(shape) :]
    return len(shape) <= len(result) and all(one in (1, other) for one, other in zip(shape, ends, strict=True))


def folded(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of a fold, without and with its axes."""
    gone = {axis % len(shape) for axis in axes}
    without = tuple(size for axis, size in enumerate(shape) if axis not in gone)
    return without, tuple(1 if axis in gone else size for axis, size in enumerate(shape))
