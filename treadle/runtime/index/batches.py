"""Keys and payloads of a caller as the arrays that the compiled index reads."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treadle.planner.documents.explain import short
from treadle.planner.errors import InputError
from treadle.planner.passes.index.operations import Keys

EXPECTED = "expected integers from 0 to 2^64 - 1"


def as_keys(values: ArrayLike, what: str = "keys") -> Keys:
    """One or several unsigned 64-bit integers as a contiguous array, without a copy of one that is. Raises InputError
    for negative, too large and other numbers."""
    array: NDArray[Any]
    if isinstance(values, np.ndarray):
        array = values
    else:
        try:
            array = np.asarray(values)
        except (ValueError, OverflowError) as error:  # rows of several lengths
            raise InputError(f"found {what} of several lengths, {EXPECTED}") from error
        if array.dtype.kind not in "iu":
            array = np.asarray(values, object)
    if array.ndim > 1:
        raise InputError(f"found {what} of shape {array.shape}, expected one dimension")
    array = np.atleast_1d(array)
    match array.dtype.kind:
        case "u":
            return np.ascontiguousarray(array, np.uint64)
        case "i":
            wrong = array[array < 0]
        case "O":
            wrong = np.array([not _is_key(each) for each in array], bool)
            wrong = array[wrong]
        case _:
            if array.size:
                raise InputError(f"found {what} of type {array.dtype}, {EXPECTED}")
            wrong = array
    if len(wrong):
        raise InputError(f"found {short(wrong[0])} among {what}, {EXPECTED}")
    return array.astype(np.uint64)


def as_key(value: int) -> int:
    """One key. Raises InputError as `as_keys` does."""
    if not _is_key(value):
        raise InputError(f"found {short(value)}, expected an integer from 0 to 2^64 - 1")
    return int(value)


def as_payloads(values: ArrayLike, keys: Keys) -> Keys:
    """One payload for each of `keys`. Raises InputError where there are more or fewer."""
    payloads = as_keys(values, "payloads")
    if len(payloads) != len(keys):
        raise InputError(f"found {len(payloads)} payloads of {len(keys)} keys, expected as many")
    return payloads


def address(array: NDArray[Any]) -> int:
    """Where the elements of a contiguous array begin."""
    buffer: Any = array
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # in a fifth of the time of what follows
    except (TypeError, ValueError):  # read-only or empty
        return int(array.ctypes.data)


def _is_key(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) < 1 << 64
