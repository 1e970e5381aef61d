"""Products of matrices and vectors; a product of matrices is a join with two variants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from treadle.array.creation import places
from treadle.array.elementwise import conjugate, equal, greater_equal, less_equal, multiply, subtract, where
from treadle.array.lazy import Array, Operand
from treadle.array.lowering import axis_of, given, joined, known_shape
from treadle.array.manipulation import broadcast_to, moveaxis, permute_dims, reshape, roll
from treadle.array.node import problem_of
from treadle.array.reductions import sum


def matmul(one: Operand, other: Operand, /) -> Array:
    """As NumPy's: the last two axes are matrices, those before are batches.

    Of an n x k matrix by one of k x m, a task has either rows of the first and all of the second, and makes rows of
    the product; or, where n <= k, columns of the first and the same rows of the second, and a summand of all of it.
    """
    one, other = given(one), given(other)
    left, right = known_shape(one, "matmul"), known_shape(other, "matmul")
    if not left or not right or left[-1] != right[max(0, len(right) - 2)]:
        raise problem_of(f"matmul of shapes {left} and {right}")
    dtype = np.result_type(one.dtype, other.dtype)
    if len(left) == 1 and len(right) == 1:
        return sum(multiply(one, other), dtype=dtype)
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()
    if len(left) <= 2 and len(right) <= 2:
        if not rows or rows[0] <= left[-1]:
            axes, update = (len(left) - 1, 0), "all"
        else:
            axes, update = (0, -1), "each"
        return joined("matmul", (one, other), axes, (*rows, *columns), dtype, update=update)
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    if len(left) > 2:
        one = broadcast_to(one, (*batch, *left[-2:]))
    if len(right) > 2:
        other = broadcast_to(other, (*batch, *right[-2:]))
    axes = (0 if len(left) > 2 else -1, 0 if len(right) > 2 else -1)
    return joined("matmul", (one, other), axes, (*batch, *rows, *columns), dtype)


def dot(one: Operand, other: Operand, /) -> Array:
    one, other = given(one), given(other)
    if not one.ndim or not other.ndim:
        return multiply(one, other)
    if one.ndim <= 2 and other.ndim <= 2:
        return matmul(one, other)
    return tensordot(one, other, axes=((-1,), (max(0, other.ndim - 2),)))


def vecdot(one: Operand, other: Operand, /, *, axis: int = -1) -> Array:
    one, other = given(one), given(other)
    if axis >= 0 or known_shape(one, "vecdot")[axis:][:1] != known_shape(other, "vecdot")[axis:][:1]:
        raise problem_of(f"vecdot of shapes {one.shape} and {other.shape} along axis {axis}, which counts from the end")
    return sum(multiply(conjugate(one), other), axis, dtype=np.result_type(one.dtype, other.dtype))


def outer(one: Operand, other: Operand, /) -> Array:
    one, other = reshape(one, (-1, 1)), reshape(other, (1, -1))
    return multiply(one, other)


def tensordot(one: Operand, other: Operand, /, *, axes: int | Sequence[Any] = 2) -> Array:
    """Sums of products over pairs of axes: the product of two matrices between reshapes."""
    one, other = given(one), given(other)
    left, right = known_shape(one, "tensordot"), known_shape(other, "tensordot")
    pairs = (list(range(-axes, 0)), list(range(axes))) if isinstance(axes, int) else axes
    first, second = (
        [axis_of(each, len(shape)) for each in ([pair] if isinstance(pair, int) else pair)]
        for pair, shape in zip(pairs, (left, right), strict=True)
    )
    if [left[each] for each in first] != [right[each] for each in second]:
        raise problem_of(f"tensordot of shapes {left} and {right} over axes {first} and {second}")
    rows = [each for each in range(len(left)) if each not in first]
    columns = [each for each in range(len(right)) if each not in second]
    inner = prod(left[each] for each in first)
    shape = (*(left[each] for each in rows), *(right[each] for each in columns))
    one = reshape(permute_dims(one, [*rows, *first]), (prod(left[each] for each in rows), inner))
    other = reshape(permute_dims(other, [*second, *columns]), (inner, prod(right[each] for each in columns)))
    return reshape(matmul(one, other), shape)


def cross(one: Operand, other: Operand, /, *, axis: int = -1) -> Array:
    """Vector products of vectors of three elements along `axis`."""
    one, other = given(one), given(other)
    places = [axis_of(axis, each.ndim) for each in (one, other)]
    if any(known_shape(each, "cross")[place] != 3 for each, place in zip((one, other), places, strict=True)):
        raise problem_of(f"cross of shapes {one.shape} and {other.shape} along axis {axis}: not three elements")
    # Component i is one[i + 1] * other[i + 2] - one[i + 2] * other[i + 1], counted around.
    (a, b), (c, d) = (
        [roll(each, -by, place) for by in (1, 2)] for each, place in zip((one, other), places, strict=True)
    )
    return subtract(multiply(a, d), multiply(b, c))


def tril(x: Operand, /, *, k: int = 0) -> Array:
    """The last two axes without what is above diagonal `k`."""
    return _triangle(x, "tril", less_equal, k)


def triu(x: Operand, /, *, k: int = 0) -> Array:
    """The last two axes without what is below diagonal `k`."""
    return _triangle(x, "triu", greater_equal, k)


def _triangle(x: Operand, name: str, kept: Callable[..., Array], k: int) -> Array:
    x = given(x)
    shape = known_shape(x, name)
    if len(shape) < 2:
        raise problem_of(f"{name} of an array of shape {shape}")
    rows, columns = places(shape, len(shape) - 2), places(shape, len(shape) - 1)
    return where(kept(columns - rows, k), x, np.zeros((), x.dtype))


def diagonal(x: Operand, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The diagonal of two axes, as the last axis: all but it is masked, and the rows are summed."""
    x = given(x)
    rank = len(known_shape(x, "diagonal"))
    x = moveaxis(x, (axis1, axis2), (rank - 2, rank - 1))
    height, width = x.shape[-2:]
    offsets = subtract(places(x.shape, rank - 1), places(x.shape, rank - 2))
    kept = where(equal(offsets, offset), x, np.zeros((), x.dtype))
    start = max(0, -offset)
    return sum(kept, -1, dtype=x.dtype)[..., start : max(start, min(height, width - offset))]


def trace(x: Operand, /, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Array:
    return sum(diagonal(x, offset, axis1, axis2), -1, dtype=dtype)
