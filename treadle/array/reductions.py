"""Functions along axes: folds and scans, and what is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod as product
from typing import Any

import numpy as np

from treadle.array.creation import full, places
from treadle.array.elementwise import abs, conjugate, divide, equal, isnan, multiply, not_equal, sqrt, subtract, where
from treadle.array.lazy import Array, Operand
from treadle.array.lowering import axes_of, axis_of, folded, given, known_shape, mapped, scanned
from treadle.array.manipulation import concat
from treadle.array.node import problem_of

Axis = int | Iterable[int] | None
_EMPTY = {"sum": 0, "prod": 1, "any": False, "all": True, "count_nonzero": 0}
"""What a fold of no element is."""


def fold(function: str, x: Operand, axis: Axis, dtype: Any, keepdims: bool) -> Array:
    """`folded`; without elements there is nothing to fold."""
    x = given(x)
    axes = axes_of(axis, x.ndim)
    if axes and x.node.ragged is None and 0 in [x.shape[each] for each in axes]:
        left = tuple(1 if each in axes else size for each, size in enumerate(x.shape) if each not in axes or keepdims)
        if function in _EMPTY:
            return full(left, _EMPTY[function], dtype=dtype)
        raise problem_of(f"{function} of no elements")
    return folded(function, x, axis, dtype=dtype, keepdims=keepdims)


def _summed(x: Array, dtype: Any) -> np.dtype[Any]:
    """The dtype in which NumPy adds: small integers as int64."""
    return np.dtype(dtype) if dtype is not None else np.asarray(np.add.reduce(np.zeros(1, x.dtype))).dtype


def sum(x: Operand, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    x = given(x)
    return fold("sum", x, axis, _summed(x, dtype), keepdims)


def prod(x: Operand, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    x = given(x)
    return fold("prod", x, axis, _summed(x, dtype), keepdims)


def max(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    x = given(x)
    return fold("max", x, axis, x.dtype, keepdims)


def largest(x: Array, axis: Axis = None, *, keepdims: bool = False) -> Array:
    """The maximum of numbers that are not negative: 0 of none."""
    none = 0 in (x.node.shape[each] for each in axes_of(axis, x.ndim))
    return sum(x, axis, dtype=x.dtype, keepdims=keepdims) if none else max(x, axis, keepdims=keepdims)


def min(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    x = given(x)
    return fold("min", x, axis, x.dtype, keepdims)


def any(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    return fold("any", x, axis, np.bool_, keepdims)


def all(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    return fold("all", x, axis, np.bool_, keepdims)


def count_nonzero(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    x = given(x)
    return fold("count_nonzero", x if axes_of(axis, x.ndim) else x != 0, axis, np.int64, keepdims)


def count_along(x: Array, axis: Axis) -> Any:
    """How many elements a fold along `axis` merges into one; an array where a filter decides it."""
    axes = axes_of(axis, x.ndim)
    others = product(x.node.shape[each] for each in axes if each or x.node.ragged is None)
    if x.node.ragged is None or 0 not in axes:
        return others
    ragged = x.node.ragged
    if ragged.function != "filter":
        known_shape(x, "a mean")
        return product(x.shape[each] for each in axes)
    return count_nonzero(Array(ragged.inputs[1])) * others


def _floating(x: Array) -> np.dtype[Any]:
    return x.dtype if x.dtype.kind in "fc" else np.dtype(float)


def mean(x: Operand, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False) -> Array:
    x = given(x)
    kind = np.dtype(dtype) if dtype is not None else _floating(x)
    # NumPy adds halves as single precision.
    total = sum(x, axis, dtype=np.float32 if kind == np.float16 else kind, keepdims=keepdims)
    return divide(total, count_along(x, axis)).astype(kind)


average = mean


def var(
    x: Operand, /, axis: Axis = None, *, correction: float = 0.0, ddof: float = 0.0, keepdims: bool = False
) -> Array:
    x = given(x)
    kind = _floating(x)
    x = x.astype(np.float32) if kind == np.float16 else x
    off = subtract(x, divide(sum(x, axis, dtype=_floating(x), keepdims=True), count_along(x, axis)))
    squares = multiply(off, conjugate(off)).real if kind.kind == "c" else multiply(off, off)
    count = count_along(x, axis) - (correction or ddof)
    count = count if isinstance(count, Array) else np.maximum(count, 0).item()
    result = divide(sum(squares, axis, keepdims=keepdims), count)
    return result.astype(np.float16) if kind == np.float16 else result


def std(
    x: Operand, /, axis: Axis = None, *, correction: float = 0.0, ddof: float = 0.0, keepdims: bool = False
) -> Array:
    return sqrt(var(x, axis, correction=correction, ddof=ddof, keepdims=keepdims))


def _place_of(best: str, x: Operand, axis: int | None, keepdims: bool) -> Array:
    """The first place where `x` is its `best` (or not a number)."""
    x = given(x)
    shape = known_shape(x, f"arg{best}")
    if axis is None:
        from treadle.array.manipulation import reshape

        flat = _place_of(best, reshape(x, (-1,)), 0, False)
        return reshape(flat, (1,) * len(shape)) if keepdims else flat
    axis = axis_of(axis, len(shape))
    if shape[axis] == 0:
        raise problem_of(f"arg{best} of no elements")
    target = fold(best, x, axis, x.dtype, True)
    found = equal(x, target)
    if x.dtype.kind in "fc":
        found = found | isnan(x)
    return min(where(found, places(shape, axis), shape[axis]), axis, keepdims=keepdims)


def argmax(x: Operand, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    return _place_of("max", x, axis, keepdims)


def argmin(x: Operand, /, axis: int | None = None, *, keepdims: bool = False) -> Array:
    return _place_of("min", x, axis, keepdims)


def _scan(function: str, x: Operand, axis: int | None, dtype: Any) -> Array:
    x = given(x)
    if axis is None:
        from treadle.array.manipulation import reshape

        x, axis = reshape(x, (-1,)), 0
    return scanned(function, x, axis, dtype=_summed(x, dtype))


def cumsum(x: Operand, /, axis: int | None = None, *, dtype: Any = None) -> Array:
    return _scan("cumulative_sum", x, axis, dtype)


def cumprod(x: Operand, /, axis: int | None = None, *, dtype: Any = None) -> Array:
    return _scan("cumulative_prod", x, axis, dtype)


def cumulative_sum(
    x: Operand, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    return _cumulative("cumulative_sum", x, axis, dtype, include_initial)


def cumulative_prod(
    x: Operand, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    return _cumulative("cumulative_prod", x, axis, dtype, include_initial)


def _cumulative(function: str, x: Operand, axis: int | None, dtype: Any, initial: bool) -> Array:
    x = given(x)
    if axis is None and x.ndim > 1:
        raise problem_of(f"{function} of an array with {x.ndim} axes needs an axis")
    axis = axis_of(0 if axis is None else axis, x.ndim)
    made = _scan(function, x, axis, dtype)
    if not initial:
        return made
    shape = [1 if each == axis else size for each, size in enumerate(known_shape(x, function))]
    return concat([full(shape, int(function == "cumulative_prod"), dtype=made.dtype), made], axis)


def diff(
    x: Operand, /, n: int = 1, axis: int = -1, *, prepend: Operand | None = None, append: Operand | None = None
) -> Array:
    """Differences of neighbours along `axis`, `n` times."""
    x = given(x)
    axis = axis_of(axis, x.ndim)
    parts = [given(each) for each in (prepend, x, append) if each is not None]
    x = concat(parts, axis) if len(parts) > 1 else x
    for _ in range(n):
        size = known_shape(x, "diff")[axis]
        before = [slice(None)] * axis
        later, sooner = x[(*before, slice(1, None))], x[(*before, slice(0, size - 1 if size else 0))]
        x = not_equal(later, sooner) if x.dtype == np.bool_ else subtract(later, sooner)
    return x if n else Array(x.node)


def ptp(x: Operand, /, axis: Axis = None, *, keepdims: bool = False) -> Array:
    return subtract(max(x, axis, keepdims=keepdims), min(x, axis, keepdims=keepdims))


def norm(x: Operand, /, axis: Axis = None, *, keepdims: bool = False, ord: Any = 2) -> Array:
    """The length of vectors along `axis` (of all elements: None): `ord` 1, 2 or infinity."""
    x = given(x)
    if ord in (2, "fro", None):
        squares = multiply(x, conjugate(x)).real if x.dtype.kind == "c" else multiply(x, x).astype(_floating(x))
        return sqrt(sum(squares, axis, keepdims=keepdims))
    if ord == 1:
        return sum(abs(x), axis, keepdims=keepdims)
    if ord == np.inf:
        return largest(abs(x), axis, keepdims=keepdims)
    return mapped("power", sum(mapped("power", abs(x), ord), axis, keepdims=keepdims), 1 / ord)
