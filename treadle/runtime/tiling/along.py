"""Functions of tiles that need whole lines along an axis, or the whole array: sort, take, repeat, reshape.

All take the parts that `join_update` has joined and return the part of the result that their task makes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Part = np.ndarray[Any, Any]


def first(part: Part, other: Part) -> Part:
    """`part` with the shape that both have together."""
    return np.broadcast_to(part, np.broadcast_shapes(part.shape, other.shape))


def _reshape(part: Part, *, sizes: list[int]) -> Part:
    return part.reshape(sizes)


def _reshape_rows(part: Part, *, sizes: list[int]) -> Part:
    """Axis 0 stays; `sizes` are those of the others."""
    return part.reshape((len(part), *sizes))


def _concat(*parts: Part, axis: int) -> Part:
    return np.concatenate(parts, axis=axis)


def _take(part: Part, indices: Part, *, axis: int) -> Part:
    return np.take(part, indices, axis=axis)


def _take_along(part: Part, indices: Part, *, axis: int) -> Part:
    return np.take_along_axis(part, indices, axis=axis)


def _flip(part: Part, *, axis: int) -> Part:
    return np.flip(part, axis)


def _roll(part: Part, *, axis: int, shift: int) -> Part:
    return np.roll(part, shift, axis)


def _sort(part: Part, *, axis: int, descending: bool = False) -> Part:
    made = np.sort(part, axis=axis, kind="stable")
    return np.flip(made, axis) if descending else made


def _argsort(part: Part, *, axis: int, descending: bool = False) -> Part:
    if not descending:
        return np.argsort(part, axis=axis, kind="stable")
    turned = np.argsort(np.flip(part, axis), axis=axis, kind="stable")
    return np.flip(part.shape[axis] - 1 - turned, axis)


def _repeat(part: Part, *, axis: int, repeats: int) -> Part:
    return np.repeat(part, repeats, axis=axis)


def _searchsorted(part: Part, values: Part, *, side: str) -> Part:
    return np.searchsorted(part, values, side=side)  # type: ignore[call-overload,no-any-return]


def _gather(part: Part, *indices: Part, indexed: list[int]) -> Part:
    """The elements at `indices` of the axes `indexed`; the axes of the indices come first in the result."""
    return np.moveaxis(part, indexed, range(len(indexed)))[indices]


def _put(part: Part, value: Part, *indices: Part, indexed: list[int]) -> Part:
    """`part` with `value` at `indices` of the axes `indexed`."""
    key: list[Any] = [slice(None)] * part.ndim
    for axis, each in zip(indexed, indices, strict=True):
        key[axis] = each
    made = part.copy()
    made[tuple(key)] = value
    return made


def _select(part: Part, mask: Part) -> Part:
    return part[mask]


def _nonzero(part: Part, *, axis: int) -> Part:
    return np.nonzero(part)[axis]


def _unique(part: Part, *, result: str) -> Part:
    made: Part = getattr(np.unique_all(part), result)
    return made


def _isin(part: Part, others: Part) -> Part:
    return np.isin(part, others)


def _fourier(name: str, part: Part, *, axis: int, **params: Any) -> Part:
    made: Part = getattr(np.fft, name)(part, axis=axis, **params)
    return made


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "reshape": _reshape,
    "reshape_rows": _reshape_rows,
    "concat": _concat,
    "take": _take,
    "take_along_axis": _take_along,
    "flip": _flip,
    "roll": _roll,
    "sort": _sort,
    "argsort": _argsort,
    "repeat": _repeat,
    "searchsorted": _searchsorted,
    "gather": _gather,
    "select": _select,
    "nonzero": _nonzero,
    "put": _put,
    "unique": _unique,
    "isin": _isin,
    **{name: partial(_fourier, name) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
}
