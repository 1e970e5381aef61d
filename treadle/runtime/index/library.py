"""The compiled learned index and its C functions (`treadle_index_c.cpp`), through ctypes.

Overhead on a Xeon of 2.6 GHz: `index[key]` takes 1.2 us and a call with arrays 2.5 us next to the index; with nanobind
they took 0.05 us and 0.8 us. From 10,000 keys a call on that is below a tenth, for which no dependency is added.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Any

from msgspec import to_builtins
from msgspec.structs import astuple

from treadle.planner.documents.explain import misfit, refusal, short
from treadle.planner.errors import InputError, LimitError
from treadle.planner.passes.index.configurations import (
    FragmentedLog,
    GappedArray,
    IndexConfiguration,
    name_of_leaves,
)
from treadle.runtime.native_build import compile_library
from treadle.runtime.native_session import POINTER, TEXT, Signatures

MAIN = "treadle_index_c.cpp"
COUNTS = (
    "inner_nodes",
    "leaves",
    "fragments",
    "empty_fragment_slots",
    "depth",
    "expansions",
    "splits",
    "growths",
    "multiplications",
    "fullest_fragment",
)
"""What `treadle_index_counts` counts, in its order."""
NO_MEMORY = 2**64 - 1

MONITOR_LOOKUPS, VIRTUAL_LEAVES, NEW_KEYS, NO_AVX2, COST_MODEL_ONLY = (1 << bit for bit in range(5))
"""Flags of an index: averages of search are kept for lookups too; leaves are reached by virtual calls; inserted keys
are promised to be new; no AVX2; no thresholds, only the cost model (as ALEX)."""

_LONG, _BYTES = ctypes.c_uint64, ctypes.c_void_p
FUNCTIONS: Signatures = {
    "treadle_index_new": (POINTER, [POINTER]),
    "treadle_index_free": (None, [POINTER]),
    "treadle_index_load": (ctypes.c_int, [POINTER, _BYTES, _BYTES, _LONG]),
    "treadle_index_lookup": (_LONG, [POINTER, _BYTES, _LONG, _BYTES, _BYTES]),
    "treadle_index_insert": (_LONG, [POINTER, _BYTES, _BYTES, _LONG, _BYTES]),
    "treadle_index_erase": (_LONG, [POINTER, _BYTES, _LONG, _BYTES]),
    "treadle_index_scan": (_LONG, [POINTER, _LONG, _LONG, _BYTES, _BYTES]),
    "treadle_index_size": (_LONG, [POINTER]),
    "treadle_index_bytes": (_LONG, [POINTER]),
    "treadle_index_counts": (None, [POINTER, _BYTES]),
    "treadle_index_broken": (TEXT, [POINTER]),
    "treadle_index_run": (
        ctypes.c_int,
        [POINTER, _BYTES, _BYTES, _BYTES, _LONG, ctypes.c_uint32, _BYTES, _BYTES],
    ),
    "treadle_index_loop": (None, [_BYTES, _BYTES, _BYTES, _LONG, _BYTES, _BYTES]),
}

Library = Any
"""A library with FUNCTIONS."""


class IndexSettings(ctypes.Structure):
    """`treadle_index_settings`."""

    _fields_ = [
        ("leaves", ctypes.c_uint32),
        ("most_search", ctypes.c_double),
        ("most_shifts", ctypes.c_double),
        ("fragment_keys", ctypes.c_uint32),
        ("most_fragments", ctypes.c_uint32),
        ("new_fragments", ctypes.c_uint32),
        ("insert_share", ctypes.c_double),
        ("flags", ctypes.c_uint32),
    ]


def settings_of(configuration: IndexConfiguration, insert_share: float, flags: int) -> IndexSettings:
    """The settings of a configuration; parameters of the other kind of leaves have the values of the middle of the
    grid. Raises InputError for values that no plan may have."""
    if wrong := misfit(to_builtins(configuration), type(configuration)):
        raise InputError(refusal(*wrong[1:]), where=name_of_leaves(configuration), path=wrong[0])
    for number in astuple(configuration):
        if not isfinite(number):
            raise InputError(f"found {number}, expected a finite number", where=name_of_leaves(configuration))
    if isinstance(configuration, FragmentedLog) and configuration.new_fragments > configuration.most_fragments:
        raise InputError("found more new fragments than a leaf may have", where=name_of_leaves(configuration))
    if not 0 <= insert_share <= 1:
        raise InputError(f"found {short(insert_share)} as the share of inserts, expected 0 to 1")
    gapped = configuration if isinstance(configuration, GappedArray) else GappedArray(most_search=4, most_shifts=32)
    log = (
        configuration
        if isinstance(configuration, FragmentedLog)
        else FragmentedLog(fragment_keys=64, most_fragments=128, new_fragments=8)
    )
    return IndexSettings(
        leaves=int(log is configuration),
        most_search=gapped.most_search,
        most_shifts=gapped.most_shifts,
        fragment_keys=log.fragment_keys,
        most_fragments=log.most_fragments,
        new_fragments=log.new_fragments,
        insert_share=insert_share,
        flags=flags,
    )


def load_library(texts: Mapping[str, str] | None = None) -> Library:
    """The library of the index as it ships, or of the `treadle_index.hpp` and `treadle_index_c.cpp` among `texts`;
    compiled now or found in the cache. Raises as `compile_library` does, such as MissingBackendError without g++."""
    if texts is None:
        return _shipped()
    return typed(ctypes.CDLL(str(compile_library(texts, MAIN, "process"))))


@cache
def _shipped() -> Library:
    from treadle.codegen.index.header import library_texts

    return load_library(library_texts())


def typed(library: ctypes.CDLL) -> Library:
    """The library with the types of its functions."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def require_memory(enough: bool, what: str) -> None:
    """Raises LimitError where the index ran out of memory while it did `what`."""
    if not enough:
        raise LimitError(f"the index ran out of memory while it {what}")
