"""Compilation of the few loops that a search runs hundreds of thousands of times, where numba is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])


def _numba() -> Any:
    try:
        return import_module("numba")
    except ImportError:
        return None


NUMBA = _numba()
COMPILES = NUMBA is not None
"""Whether loops are compiled; without numba (extra `swap`) they run as they stand, with the same results."""


def compiled(function: Function) -> Function:
    """`function` as machine code, kept in numba's cache from one process to the next where any of numba's folders
    (NUMBA_CACHE_DIR, beside the source, the user's cache) can be written."""
    if not COMPILES:
        return function
    try:
        made = NUMBA.njit(cache=True)(function)
        _distrust(made)
    except (RuntimeError, AttributeError):  # no folder to write to, or a cache of another make
        made = NUMBA.njit(function)
    return cast(Function, made)


def _distrust(made: Any) -> None:
    """numba compiles anew when the file of a function has changed. What the function calls, and the numbers that it
    reads, are part of its code too, and may be another file's: they become part of the mark by which it knows."""
    around = made.py_func.__globals__
    calls = [
        value for value in around.values() if hasattr(value, "py_func") and value.py_func.__globals__ is not around
    ]
    numbers = sorted((name, value) for name, value in around.items() if isinstance(value, int))
    file = made._cache._cache_file
    file._source_stamp = (file._source_stamp, numbers, [other._cache._cache_file._source_stamp for other in calls])
