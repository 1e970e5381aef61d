"""Every function of arrays is made of these: the five operators map, filter, fold, scan and join_update, the
primitives newarray, slice and swapaxis, and arrays that exist already (`value`).

Each checks its operands, infers shape and dtype as NumPy does, and returns a new lazy array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from treadle.array.forcing import counted
from treadle.array.lazy import Array, Operand
from treadle.array.node import LazyNode, line_of_program, problem_of
from treadle.array.settings import CAPTURING
from treadle.planner.errors import InputError
from treadle.runtime.tiling.functions import called

Region = Sequence[tuple[int, int, int]]


def given(operand: Operand) -> Array:
    """`operand` as a lazy array, an object of its own: changing one later does not change the other."""
    if isinstance(operand, Array):
        return Array(operand.node)
    values = np.array(operand)
    if values.dtype.kind not in "biufc":
        raise problem_of(f"arrays hold numbers, not {values.dtype} ({type(operand).__name__})")
    values.flags.writeable = False
    return Array(LazyNode("value", "value", values.shape, values.dtype, value=values, line=line_of_program()))


def known_shape(array: Array, operation: str) -> tuple[int, ...]:
    """The shape of `array`, which `operation` needs. Evaluates arrays whose data decide it; a plan cannot."""
    node = array.node
    if node.ragged is not None and CAPTURING.get():
        raise problem_of(
            f"{operation} needs the shape of the {node.ragged.function} of {node.ragged.line}, "
            "which its data decide when the program runs; a plan needs it before"
        )
    return array.shape


def axis_of(axis: int, rank: int) -> int:
    """`axis` counted from the front."""
    if not isinstance(axis, (int, np.integer)) or not -rank <= axis < rank:
        raise problem_of(f"axis {axis!r} of an array with {rank} axes")
    return int(axis) % rank


def axes_of(axis: int | Iterable[int] | None, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, ascending; None stands for all."""
    if axis is None:
        return tuple(range(rank))
    several = tuple(axis) if isinstance(axis, Iterable) else (axis,)
    found = sorted(axis_of(each, rank) for each in several)
    if len(set(found)) != len(found):
        raise problem_of(f"axes {several} name one axis twice")
    return tuple(found)


def created(shape: int | Sequence[int], dtype: Any, params: dict[str, Any]) -> Array:
    """`newarray`: contents as `treadle.runtime.tiling.filled` says."""
    sizes = tuple(int(size) for size in (shape if isinstance(shape, Sequence) else (shape,)))
    if any(size < 0 for size in sizes):
        raise problem_of(f"shape {sizes} has a negative size")
    return _made(LazyNode("newarray", str(params["init"]), sizes, np.dtype(dtype), params=params))


def mapped(
    function: str,
    *operands: Operand,
    dtype: Any = None,
    local: Callable[..., Any] | None = None,
    **params: Any,
) -> Array:
    """`map`: `function` on tiles of the operands at the same place, with NumPy's broadcasting; a result has one element
    for each place. Python scalars are constants, and the dtypes of arrays decide over theirs."""
    arrays, constants = [], []
    for place, operand in enumerate(operands):
        if isinstance(operand, (bool, int, float, complex, np.generic)):
            constants.append(_constant(place, operand))
        else:
            arrays.append(given(operand))
    if not arrays:
        arrays, constants = [given(np.asarray(operands[0]))], constants[1:]
    if constants:
        params["constants"] = constants
    arrays = _same_lengths(arrays, function)
    ragged = next((each.node.ragged for each in arrays if each.node.ragged is not None), None)
    node = LazyNode("map", function, (), np.dtype(bool), _nodes(arrays), params=params, ragged=ragged, local=local)
    node.dtype = np.dtype(dtype) if dtype is not None else _dtype_of(node)
    try:
        node.shape = np.broadcast_shapes(*(each.node.shape for each in arrays))
    except ValueError:
        shapes = " and ".join(str(each.node.shape) for each in arrays)
        raise problem_of(f"{function}: shapes {shapes} do not broadcast") from None
    return _made(node)


def filtered(array: Operand, mask: Operand) -> Array:
    """`filter`: the rows (elements along axis 0) of `array` where `mask` is true. Only the data decide how many."""
    array, mask = given(array), given(mask)
    (length,) = known_shape(mask, "filter")
    if mask.dtype != np.bool_ or known_shape(array, "filter")[:1] != (length,):
        raise problem_of(f"filter of {array.shape} by a mask {mask.dtype} {mask.shape}")
    node = LazyNode("filter", "filter", array.shape, array.dtype, _nodes((array, mask)))
    node.ragged = node
    return _made(node)


def selected(function: str, *arrays: Operand, bound: tuple[int, ...], dtype: Any, **params: Any) -> Array:
    """A `filter` that no plan can have: `function` finds out from the data how long axis 0 of its result is."""
    inputs = [given(each) for each in arrays]
    for each in inputs:
        known_shape(each, function)
    node = LazyNode("filter", function, bound, np.dtype(dtype), _nodes(inputs), params=params)
    node.ragged = node
    return _made(node)


def folded(
    function: str,
    array: Operand,
    axis: int | Iterable[int] | None,
    *,
    dtype: Any,
    keepdims: bool = False,
    local: Callable[..., Any] | None = None,
    **params: Any,
) -> Array:
    """`fold`: `function`, associative and commutative, along the axes."""
    array = given(array)
    shape, axes = array.node.shape, axes_of(axis, array.ndim)
    if not axes:
        return array if array.dtype == dtype else mapped("astype", array, dtype=dtype)
    left = tuple(1 if each in axes else size for each, size in enumerate(shape) if each not in axes or keepdims)
    ragged = array.node.ragged if 0 not in axes else None
    params = {**params, "keepdims": True} if keepdims else params
    return _made(
        LazyNode("fold", function, left, np.dtype(dtype), _nodes((array,)), axes, params, ragged=ragged, local=local)
    )


def scanned(function: str, array: Operand, axis: int, *, dtype: Any, **params: Any) -> Array:
    """`scan`: running aggregates along `axis`."""
    array = given(array)
    axis = axis_of(axis, array.ndim)
    shape = known_shape(array, function) if axis == 0 else array.node.shape
    node = LazyNode("scan", function, shape, np.dtype(dtype), _nodes((array,)), (axis,), params)
    node.ragged = array.node.ragged
    return _made(node)


def joined(
    function: str,
    arrays: Sequence[Operand],
    axes: Sequence[int],
    shape: Sequence[int],
    dtype: Any,
    *,
    update: str = "each",
    local: Callable[..., Any] | None = None,
    **params: Any,
) -> Array:
    """`join_update`: cuts each array along its axis of `axes` into as many groups as there are workers (-1: the whole
    array joins each); `function` makes of the j-th groups the j-th part of axis 0 of the result (`each`), or a partial
    result of which all are merged (`all`)."""
    inputs = [given(each) for each in arrays]
    for each in inputs:
        known_shape(each, function)
    sizes = tuple(int(size) for size in shape)
    if 0 in sizes or (update == "all" and any(0 in each.shape for each in inputs)):
        return created(sizes, dtype, {"init": "zeros"})
    return _made(
        LazyNode(
            "join_update", function, sizes, np.dtype(dtype), _nodes(inputs), tuple(axes), params, update, local=local
        )
    )


def sliced(array: Array, region: Region) -> Array:
    """`slice`: a view of `region`, (start, stop, step) of each axis with step >= 1."""
    shape = known_shape(array, "slice")
    whole = tuple((0, size, 1) for size in shape)
    if tuple(region) == whole:
        return array
    sizes = tuple(len(range(*part)) for part in region)
    node = LazyNode("slice", "slice", sizes, array.dtype, _nodes((array,)))
    node.params = {"region": [[int(each) for each in part] for part in region]}
    return _made(node)


def swapped(array: Array, one: int, other: int) -> Array:
    """`swapaxis`: a view with two axes exchanged."""
    if one == other:
        return array
    shape = list(known_shape(array, "swapaxis"))
    shape[one], shape[other] = shape[other], shape[one]
    axes = (min(one, other), max(one, other))
    return _made(LazyNode("swapaxis", "swapaxis", tuple(shape), array.dtype, _nodes((array,)), axes))


def _made(node: LazyNode) -> Array:
    node.line = line_of_program()
    return Array(counted(node))


def _nodes(arrays: Iterable[Array]) -> tuple[LazyNode, ...]:
    return tuple(each.node for each in arrays)


def _constant(place: int, operand: Any) -> list[Any]:
    kind = operand.dtype.name if isinstance(operand, np.generic) else type(operand).__name__
    return [place, kind, str(operand)]


def _same_lengths(arrays: list[Array], operation: str) -> list[Array]:
    """The arrays, evaluated where a length that the data decide meets another one."""
    ragged = [each for each in arrays if each.node.ragged is not None]
    if not ragged:
        return arrays
    first = ragged[0].node
    for each in arrays:
        same = each.node.ragged is first.ragged and each.ndim == len(first.shape)
        if not same and not (each.ndim < len(first.shape) or (each.node.ragged is None and each.node.shape[0] == 1)):
            for array in arrays:
                known_shape(array, operation)
            return [given(array.numpy()) for array in arrays]
    return arrays


def _dtype_of(node: LazyNode) -> np.dtype[Any]:
    """The dtype that NumPy gives the result of a map: functions of the table are tried on arrays without elements,
    those of the user on one element."""
    ours = node.local is None and ":" not in node.function
    samples = [np.ones((0,) if ours else (1,) * len(each.shape), each.dtype) for each in node.inputs]
    try:
        return np.dtype(called(node, samples, None, node.local).dtype)
    except InputError as error:
        raise problem_of(str(error.args[0])) from error
