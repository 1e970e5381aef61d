"""A learned index of unsigned 64-bit keys with payloads, compiled for this machine (MAPLE, "Design")."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from threading import RLock
from types import TracebackType
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treadle.planner.documents.explain import short
from treadle.planner.errors import InputError
from treadle.planner.passes.index.configurations import IndexConfiguration
from treadle.planner.passes.index.operations import WORDS, Keys, Operations
from treadle.runtime.index.batches import address, as_key, as_keys, as_payloads
from treadle.runtime.index.library import (
    COUNTS,
    NEW_KEYS,
    NO_MEMORY,
    Library,
    load_library,
    require_memory,
    settings_of,
)

SCANNED = 4096
"""Keys that `items` reads at once."""
MOST_SCANNED = 1 << 32
LATEST = (1 << 64) - 1


class RunOfOperations(NamedTuple):
    """Times in ns of equal parts of the operations, and a sum over all answers by which two runs are compared."""

    window_ns: Keys
    answers: int


class LearnedIndex:
    """An ordered map from unsigned 64-bit keys to unsigned 64-bit payloads, in memory.

    Keys are different; a key that is there keeps its payload when it is inserted once more. Methods take one key, a
    list or an array: arrays of type uint64 are read without a copy, and a call of thousands of keys costs little more
    than the index itself. Several threads may use one index: each call has it to itself. The memory is freed by
    `close`, at the end of `with`, or with the last reference.

    >>> from treadle.index import FragmentedLog, LearnedIndex
    >>> index = LearnedIndex(FragmentedLog(fragment_keys=64, most_fragments=128, new_fragments=8))
    >>> index.load([1, 5, 9], [10, 50, 90])
    >>> index.insert([5, 7], [0, 70]).tolist()
    [False, True]
    >>> index[5], 8 in index, len(index)
    (50, False, 4)
    """

    def __init__(
        self,
        configuration: IndexConfiguration,
        *,
        insert_share: float = 0.5,
        unique: bool = False,
        flags: int = 0,
        library: Library | None = None,
    ) -> None:
        """An empty index.

        insert_share: the expected share of inserts among operations, for the cost model of gapped arrays.
        unique: the caller promises that no inserted key is there already, so that inserts need not look; a broken
            promise gives an index with a key twice.
        flags: of treadle.runtime.index.library, to compare how an index may be built.
        library: another compiled text of the same functions.

        Raises InputError for a configuration that no plan may have, MissingBackendError without a compiler.
        """
        self._library: Library = load_library() if library is None else library
        settings = settings_of(configuration, insert_share, flags | (NEW_KEYS if unique else 0))
        handle = self._library.treadle_index_new(ctypes.byref(settings))
        require_memory(handle is not None, "started")
        self._handle: int | None = handle
        self._free = weakref.finalize(self, self._library.treadle_index_free, handle)
        self._lock = RLock()
        self._one = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint8()
        self._places = tuple(map(ctypes.addressof, self._one))

    def close(self) -> None:
        """Free the memory; calls are refused afterwards."""
        with self._lock:
            self._handle = None
            self._free()

    def __enter__(self) -> LearnedIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InputError("found an index to be copied or pickled; its items can be")

    @property
    def _open(self) -> int:
        if self._handle is None:
            raise InputError("the index is closed")
        return self._handle

    def load(self, keys: ArrayLike, payloads: ArrayLike) -> None:
        """Fill an empty index with ascending, different keys, which is far faster than inserts. Raises InputError for
        other keys and for an index with keys, LimitError where memory is short."""
        loaded = as_keys(keys)
        values = as_payloads(payloads, loaded)
        with self._lock:
            result = self._library.treadle_index_load(self._open, address(loaded), address(values), len(loaded))
        if result == 1:
            raise InputError("found keys to load that do not ascend, expected each key above the one in front of it")
        if result == 2:
            raise InputError(f"found an index of {len(self)} keys, expected an empty one to load keys into")
        require_memory(result == 0, f"loaded {len(loaded)} keys")

    def lookup(self, keys: ArrayLike) -> tuple[Keys, NDArray[np.bool_]]:
        """The payload of each key, 0 where it is not there, and whether it is there."""
        asked = as_keys(keys)
        payloads, found = np.zeros(len(asked), np.uint64), np.empty(len(asked), np.bool_)
        with self._lock:
            self._library.treadle_index_lookup(
                self._open, address(asked), len(asked), address(payloads), address(found)
            )
        return payloads, found

    def insert(self, keys: ArrayLike, payloads: ArrayLike) -> NDArray[np.bool_]:
        """Insert keys one after the other; whether each was new. Raises LimitError where memory is short."""
        added = as_keys(keys)
        values = as_payloads(payloads, added)
        new = np.zeros(len(added), np.bool_)
        with self._lock:
            result = self._library.treadle_index_insert(
                self._open, address(added), address(values), len(added), address(new)
            )
        require_memory(result != NO_MEMORY, f"inserted {len(added)} keys")
        return new

    def erase(self, keys: ArrayLike) -> NDArray[np.bool_]:
        """Remove keys; whether each was there."""
        gone = as_keys(keys)
        there = np.empty(len(gone), np.bool_)
        with self._lock:
            self._library.treadle_index_erase(self._open, address(gone), len(gone), address(there))
        return there

    def scan(self, start: int, count: int) -> tuple[Keys, Keys]:
        """Up to `count` keys from `start` on, ascending, and their payloads."""
        if type(count) is bool or not isinstance(count, (int, np.integer)) or not 0 <= count <= MOST_SCANNED:
            raise InputError(f"found {short(count)} keys to scan, expected 0 to {MOST_SCANNED}")
        with self._lock:
            most = min(count, len(self))
            keys, payloads = np.empty(most, np.uint64), np.empty(most, np.uint64)
            found = self._library.treadle_index_scan(self._open, as_key(start), most, address(keys), address(payloads))
        require_memory(found != NO_MEMORY, f"scanned {most} keys")
        return keys[:found], payloads[:found]

    def items(self) -> Iterator[tuple[int, int]]:
        """All keys, ascending, with their payloads; an insert in between shows where it is still to come."""
        start = 0
        while True:
            keys, payloads = self.scan(start, SCANNED)
            yield from zip(keys.tolist(), payloads.tolist(), strict=True)
            if len(keys) < SCANNED or keys[-1] == LATEST:
                return
            start = int(keys[-1]) + 1

    def __iter__(self) -> Iterator[int]:
        return (key for key, _ in self.items())

    def __len__(self) -> int:
        with self._lock:
            return int(self._library.treadle_index_size(self._open))

    def __contains__(self, key: int) -> bool:
        return self._looked_up(key) is not None

    def __getitem__(self, key: int) -> int:
        """The payload of one key. Raises KeyError where it is not there."""
        payload = self._looked_up(key)
        if payload is None:
            raise KeyError(key)
        return payload

    def _looked_up(self, key: int) -> int | None:
        if type(key) is not int or not 0 <= key <= LATEST:  # as_key takes as long as the call
            key = as_key(key)
        asked, payload, found = self._one
        with self._lock:
            asked.value = key
            self._library.treadle_index_lookup(self._open, self._places[0], 1, *self._places[1:])
            return payload.value if found.value else None

    @property
    def bytes(self) -> int:
        """Memory of all nodes with their free slots, pointers and models."""
        with self._lock:
            return int(self._library.treadle_index_bytes(self._open))

    def counts(self) -> dict[str, int]:
        """Nodes, fragments and structural changes so far, by the names of COUNTS."""
        counts = (ctypes.c_uint64 * 12)()
        with self._lock:
            self._library.treadle_index_counts(self._open, counts)
        return dict(zip(COUNTS, counts, strict=False))

    def broken(self) -> str | None:
        """The first invariant of the structure that does not hold, in words; goes over all keys."""
        with self._lock:
            found: bytes | None = self._library.treadle_index_broken(self._open)
            return None if found is None else found.decode("utf-8", "replace")

    def run(self, operations: Operations, windows: int = 1) -> RunOfOperations:
        """Execute operations in compiled code, timed in `windows` equal parts. Raises LimitError where memory is
        short."""
        ops = np.ascontiguousarray(operations.ops, np.uint8)
        keys, payloads = as_keys(operations.keys), as_payloads(operations.payloads, operations.keys)
        if len(ops) != len(keys) or ops.max(initial=0) >= len(WORDS) or not 1 <= windows <= max(1, len(ops)):
            what = f"{len(ops)} operations from 0 to {ops.max(initial=0)} of {len(keys)} keys"
            raise InputError(f"found {what} in {windows} windows")
        times, answers = np.zeros(windows, np.uint64), np.zeros(1, np.uint64)
        with self._lock:
            result = self._library.treadle_index_run(
                self._open,
                *(address(each) for each in (ops, keys, payloads)),
                len(ops),
                windows,
                address(times),
                address(answers),
            )
        require_memory(result == 0, f"executed {len(ops)} operations")
        return RunOfOperations(times, int(answers[0]))
