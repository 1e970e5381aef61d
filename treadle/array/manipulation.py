"""Shapes and orders: views where possible, else joins along an axis that stays."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from treadle.array.lazy import Array, Operand
from treadle.array.lowering import axes_of, axis_of, created, folded, given, joined, known_shape, mapped, swapped
from treadle.array.node import problem_of


def permute_dims(x: Operand, /, axes: Sequence[int]) -> Array:
    x = given(x)
    wanted = [axis_of(axis, x.ndim) for axis in axes]
    if sorted(wanted) != list(range(x.ndim)):
        raise problem_of(f"axes {tuple(axes)} are no order of {x.ndim} axes")
    order = list(range(x.ndim))
    for place, axis in enumerate(wanted):
        other = order.index(axis)
        x = swapped(x, place, other)
        order[place], order[other] = order[other], order[place]
    return x


def transpose(x: Operand, /, axes: Sequence[int] | None = None) -> Array:
    x = given(x)
    return permute_dims(x, tuple(reversed(range(x.ndim))) if axes is None else axes)


def matrix_transpose(x: Operand, /) -> Array:
    x = given(x)
    if x.ndim < 2:
        raise problem_of("matrix_transpose needs two axes")
    return swapped(x, x.ndim - 2, x.ndim - 1)


def swapaxes(x: Operand, one: int, other: int, /) -> Array:
    x = given(x)
    return swapped(x, axis_of(one, x.ndim), axis_of(other, x.ndim))


def moveaxis(x: Operand, source: Any, destination: Any, /) -> Array:
    x = given(x)
    sources = [axis_of(each, x.ndim) for each in ([source] if isinstance(source, int) else source)]
    targets = [axis_of(each, x.ndim) for each in ([destination] if isinstance(destination, int) else destination)]
    order = [axis for axis in range(x.ndim) if axis not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return permute_dims(x, order)


def squeeze(x: Operand, /, axis: Any = None) -> Array:
    x = given(x)
    shape = known_shape(x, "squeeze")
    axes = [each for each, size in enumerate(shape) if size == 1] if axis is None else axes_of(axis, x.ndim)
    if any(shape[each] != 1 for each in axes):
        raise problem_of(f"squeeze of axes {tuple(axes)} of shape {shape}")
    return folded("only", x, axes, dtype=x.dtype) if axes else x


def expand_dims(x: Operand, /, axis: Any = 0) -> Array:
    """New axes of one element each: in front by broadcasting, then moved to their places."""
    x = given(x)
    several = (axis,) if isinstance(axis, int) else tuple(axis)
    rank = x.ndim + len(several)
    axes = axes_of(several, rank)
    x = mapped("first", x, created((1,) * rank, np.bool_, {"init": "zeros"}), dtype=x.dtype)
    return moveaxis(x, tuple(range(len(axes))), axes)


def broadcast_to(x: Operand, /, shape: Sequence[int]) -> Array:
    x = given(x)
    have, wanted = known_shape(x, "broadcast_to"), tuple(int(size) for size in shape)
    padded = (1,) * (len(wanted) - len(have)) + have
    if len(padded) != len(wanted) or any(size not in (1, want) for size, want in zip(padded, wanted, strict=True)):
        raise problem_of(f"shape {have} does not broadcast to {wanted}")
    if have == wanted:
        return x
    other = [want if size != want else 1 for size, want in zip(padded, wanted, strict=True)]
    return mapped("first", x, created(other, np.bool_, {"init": "zeros"}), dtype=x.dtype)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise problem_of(f"shapes {' and '.join(map(str, shapes))} do not broadcast") from None


def broadcast_arrays(*arrays: Operand) -> list[Array]:
    found = [given(each) for each in arrays]
    try:
        shape = np.broadcast_shapes(*(known_shape(each, "broadcast_arrays") for each in found))
    except ValueError:
        raise problem_of(f"shapes {' and '.join(str(each.shape) for each in found)} do not broadcast") from None
    return [broadcast_to(each, shape) for each in found]


def reshape(x: Operand, /, shape: Any, *, copy: bool | None = None) -> Array:
    """Free where only axes of one element come or go; along axis 0 where that stays; else one worker has it whole."""
    x = given(x)
    have = known_shape(x, "reshape")
    wanted = _complete(tuple(map(int, [shape] if isinstance(shape, (int, np.integer)) else shape)), have)
    if wanted == have:
        return x
    if [size for size in wanted if size != 1] == [size for size in have if size != 1]:
        x = squeeze(x)
        return expand_dims(x, [axis for axis, size in enumerate(wanted) if size == 1]) if 1 in wanted else x
    if wanted and have and wanted[0] == have[0]:
        return joined("reshape_rows", (x,), (0,), wanted, x.dtype, sizes=list(wanted[1:]))
    return joined("reshape", (x,), (-1,), wanted, x.dtype, sizes=list(wanted))


def _complete(shape: tuple[int, ...], have: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` with what -1 stands for."""
    known = prod(size for size in shape if size != -1)
    if shape.count(-1) == 1 and known and prod(have) % known == 0:
        shape = tuple(prod(have) // known if size == -1 else size for size in shape)
    if -1 in shape or prod(shape) != prod(have):
        raise problem_of(f"reshape of {have} to {shape}")
    return shape


def tile(x: Operand, repetitions: Sequence[int], /) -> Array:
    """`x`, repeated along each axis: broadcast along new axes that are then merged."""
    x = given(x)
    times = [repetitions] if isinstance(repetitions, int) else list(repetitions)
    shape = known_shape(x, "tile")
    rank = max(len(times), len(shape))
    times, sizes = [1] * (rank - len(times)) + times, (1,) * (rank - len(shape)) + shape
    pairs = [size for each, have in zip(times, sizes, strict=True) for size in (each, have)]
    single = [size for have in sizes for size in (1, have)]
    made = broadcast_to(reshape(x, single), pairs)
    return reshape(made, [each * have for each, have in zip(times, sizes, strict=True)])


def unstack(x: Operand, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The parts of `x` along `axis`, without it."""
    x = given(x)
    axis = axis_of(axis, x.ndim)
    return tuple(x[(*([slice(None)] * axis), place)] for place in range(known_shape(x, "unstack")[axis]))


def meshgrid(*arrays: Operand, indexing: str = "xy") -> list[Array]:
    """Arrays of one axis as the coordinates of a grid."""
    found = [given(each) for each in arrays]
    if any(each.ndim > 1 for each in found) or indexing not in ("xy", "ij"):
        raise problem_of("meshgrid takes arrays of one axis, and indexing xy or ij")
    order = list(range(len(found)))
    if indexing == "xy" and len(found) > 1:
        order[:2] = [1, 0]
    lines = [
        reshape(each, [-1 if axis == place else 1 for axis in range(len(found))])
        for each, place in zip(found, order, strict=True)
    ]
    return broadcast_arrays(*lines)


def ravel(x: Operand, /) -> Array:
    return reshape(x, (-1,))


def along(function: str, arrays: Sequence[Operand], axis: int, size: int | None, dtype: Any, **params: Any) -> Array:
    """`function` on whole lines of the arrays along `axis`, of which `size` (as many: None) elements result: joined
    along another axis, or by one worker where no other is."""
    inputs = [given(each) for each in arrays]
    rank = inputs[0].ndim
    if rank == 1:
        length = inputs[0].shape[0] if size is None else size
        return joined(function, inputs, (-1,) * len(inputs), (length,), dtype, axis=0, **params)
    moved = [swapped(each, 0, axis if axis else 1) if axis == 0 else each for each in inputs]
    place = axis or 1
    shape = [size if each == place and size is not None else have for each, have in enumerate(moved[0].shape)]
    made = joined(function, moved, (0,) * len(inputs), shape, dtype, axis=place, **params)
    return swapped(made, 0, 1) if axis == 0 else made


def flip(x: Operand, /, axis: Any = None) -> Array:
    x = given(x)
    known_shape(x, "flip")
    for each in axes_of(axis, x.ndim):
        x = along("flip", (x,), each, None, x.dtype)
    return x


def roll(x: Operand, /, shift: Any, axis: Any = None) -> Array:
    x = given(x)
    shape = known_shape(x, "roll")
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), shape)
    shifts = [shift] if isinstance(shift, int) else list(shift)
    axes = [axis] if isinstance(axis, int) else list(axis)
    count = max(len(shifts), len(axes))
    shifts, axes = shifts * (count if len(shifts) == 1 else 1), axes * (count if len(axes) == 1 else 1)
    for each, by in zip(axes, shifts, strict=True):
        x = along("roll", (x,), axis_of(each, x.ndim), None, x.dtype, shift=int(by))
    return x


def concat(arrays: Sequence[Operand], /, axis: int | None = 0) -> Array:
    found = [given(each) for each in arrays]
    if not found:
        raise problem_of("concat of no arrays")
    if axis is None:
        found, axis = [ravel(each) for each in found], 0
    axis = axis_of(axis, found[0].ndim)
    shapes = [known_shape(each, "concat") for each in found]
    if len({(*shape[:axis], *shape[axis + 1 :], len(shape)) for shape in shapes}) > 1:
        raise problem_of(f"concat of shapes {' and '.join(map(str, shapes))} along axis {axis}")
    dtype = np.result_type(*(each.dtype for each in found))
    # Workers have no part of an array without elements, and would make none of the result.
    parts = [each for each, shape in zip(found, shapes, strict=True) if shape[axis]] or found
    return along("concat", parts, axis, sum(shape[axis] for shape in shapes), dtype)


concatenate = concat


def stack(arrays: Sequence[Operand], /, axis: int = 0) -> Array:
    found = [given(each) for each in arrays]
    if len({known_shape(each, "stack") for each in found}) != 1:
        raise problem_of(f"stack of shapes {' and '.join(str(each.shape) for each in found)}")
    return concat([expand_dims(each, axis) for each in found], axis_of(axis, found[0].ndim + 1))


def vstack(arrays: Sequence[Operand], /) -> Array:
    return concat([each if each.ndim > 1 else reshape(each, (1, -1)) for each in map(given, arrays)], 0)


def hstack(arrays: Sequence[Operand], /) -> Array:
    found = [each if each.ndim else reshape(each, (1,)) for each in map(given, arrays)]
    return concat(found, 0 if found[0].ndim == 1 else 1)


def repeat(x: Operand, repeats: Operand, /, axis: int | None = None) -> Array:
    x = given(x)
    known_shape(x, "repeat")
    x, axis = (ravel(x), 0) if axis is None else (x, axis_of(axis, x.ndim))
    if not isinstance(repeats, (int, np.integer)):
        from treadle.array.indexing import take

        # How long the result is depends on the values.
        times = np.broadcast_to(given(repeats).numpy(), x.shape[axis])
        return take(x, np.repeat(np.arange(x.shape[axis]), times), axis=axis)
    return along("repeat", (x,), axis, x.shape[axis] * int(repeats), x.dtype, repeats=int(repeats))
