"""Orders and searches, and the functions whose result is as long as the data say."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from treadle.array.elementwise import logical_not
from treadle.array.lazy import Array, Operand
from treadle.array.lowering import axis_of, given, joined, known_shape, selected
from treadle.array.manipulation import along, reshape
from treadle.array.node import problem_of


def sort(x: Operand, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    x = given(x)
    known_shape(x, "sort")
    return along("sort", (x,), axis_of(axis, x.ndim), None, x.dtype, descending=bool(descending))


def argsort(x: Operand, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Array:
    x = given(x)
    known_shape(x, "argsort")
    return along("argsort", (x,), axis_of(axis, x.ndim), None, np.int64, descending=bool(descending))


def searchsorted(x: Operand, values: Operand, /, *, side: str = "left", sorter: Any = None) -> Array:
    """Where each of `values` belongs in the ascending `x`, which each worker has whole."""
    x, values = given(x), given(values)
    if sorter is not None:
        from treadle.array.indexing import take

        x = take(x, sorter, axis=0)
    cut = 0 if values.ndim else -1
    return joined("searchsorted", (x, values), (-1, cut), values.shape, np.int64, side=str(side))


def nonzero(x: Operand, /) -> tuple[Array, ...]:
    """The places of the elements that are not 0, an array for each axis."""
    x = given(x)
    if not x.ndim:
        raise problem_of("nonzero of an array without axes")
    bound = (prod(known_shape(x, "nonzero")),)
    return tuple(selected("nonzero", x, bound=bound, dtype=np.int64, axis=axis) for axis in range(x.ndim))


def _unique(x: Operand, result: str, dtype: Any = np.int64) -> Array:
    x = given(x)
    bound = (prod(known_shape(x, "unique")),)
    return selected("unique", x, bound=bound, dtype=dtype, result=result)


def unique_values(x: Operand, /) -> Array:
    """Each value once, ascending."""
    x = given(x)
    return _unique(x, "values", x.dtype)


class UniqueCounts(NamedTuple):
    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    values: Array
    inverse_indices: Array


class UniqueAll(NamedTuple):
    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


def unique_counts(x: Operand, /) -> UniqueCounts:
    return UniqueCounts(unique_values(x), _unique(x, "counts"))


def unique_inverse(x: Operand, /) -> UniqueInverse:
    """The values, and where among them each element is."""
    x = given(x)
    shape = known_shape(x, "unique_inverse")
    return UniqueInverse(unique_values(x), joined("unique", (x,), (-1,), shape, np.int64, result="inverse_indices"))


def unique_all(x: Operand, /) -> UniqueAll:
    """The values, where each is first, where among them each element is, and how often each is there."""
    values, inverse = unique_inverse(x)
    return UniqueAll(values, _unique(x, "indices"), inverse, _unique(x, "counts"))


unique = unique_values


def flatnonzero(x: Operand, /) -> Array:
    return nonzero(reshape(x, (-1,)))[0]


def isin(x: Operand, others: Operand, /, *, invert: bool = False) -> Array:
    """Which elements of `x` are among `others`, which each worker has whole."""
    x, others = given(x), given(others)
    shape = known_shape(x, "isin")
    known_shape(others, "isin")
    made = joined("isin", (x, others), (0 if shape else -1, -1), shape, np.bool_)
    return logical_not(made) if invert else made
