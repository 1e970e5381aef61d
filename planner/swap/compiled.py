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
        return cast(Function, NUMBA.njit(cache=True)(function))
    except RuntimeError:  # no folder to write to
        return cast(Function, NUMBA.njit(function))
