"""Compilation of the loops that a search runs hundreds of thousands of times, if numba is installed."""

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
"""Whether loops are compiled; without numba (extra `swap`) they run uncompiled, with the same results."""


def compiled(function: Function) -> Function:
    """`function` as machine code, cached between processes if any of numba's folders (NUMBA_CACHE_DIR, next to the
    source file, the user's cache) is writable."""
    if not COMPILES:
        return function
    try:
        made = NUMBA.njit(cache=True)(function)
        _distrust(made)
    except (RuntimeError, AttributeError):  # no writable folder, or a cache of another version
        made = NUMBA.njit(function)
    return cast(Function, made)


def _distrust(made: Any) -> None:
    """Recompile also when functions that it calls, or constants that it reads, have changed in other files: numba only
    compares the file of the function, so they are added to the stamp that it compares."""
    around = made.py_func.__globals__
    calls = [
        value for value in around.values() if hasattr(value, "py_func") and value.py_func.__globals__ is not around
    ]
    numbers = sorted((name, value) for name, value in around.items() if isinstance(value, int))
    file = made._cache._cache_file
    file._source_stamp = (file._source_stamp, numbers, [other._cache._cache_file._source_stamp for other in calls])
