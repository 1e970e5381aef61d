"""The compiled server (`wire/server.cpp`): a thread for each core slot, which serves its chunks of all jobs."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treadle.host.square_roots import follow_pytorch
from treadle.planner.errors import CheckFailed, LimitError
from treadle.planner.passes.server.keys import TYPE_NUMBERS, KeyType
from treadle.planner.passes.server.problem import OPTIMIZER_NUMBERS, SETTINGS_NUMBERS, STATES, OptimizerName
from treadle.runtime.kernel_texts import texts
from treadle.runtime.native_build import compile_library
from treadle.runtime.wire.texts import wire_texts

LOST, FINISHED, SNAPSHOT, LATE, PEER = 1, 2, 3, 4, 5
"""What an event reports: a worker is gone; every chunk has a version; the copy of a version is whole; a version waits
for one worker only; the server of another rack is gone."""
ARRIVED, ADDED, OPTIMIZED, SENT = 1, 2, 3, 4
"""Acts of the log."""
COUNTS = ("bytes_in", "bytes_out", "adds", "busy_ns", "frames_in", "frames_out", "updates", "sleeps")
NO_MEMORY = -2
MOST_EVENTS = 64
Floats = NDArray[np.float32]
Counts = NDArray[np.uint64]


@dataclass(frozen=True)
class NativeJob:
    """What one server knows of a job. Chunks are those of the whole model, in the order of keys.

    `slots` [chunks] are cores of this server, -1 for chunks of other servers; `owners` [chunks], with two levels only,
    the racks whose servers optimize them. `settings` [groups, numbers] are the first ones, `key_groups` [keys] say
    which belong to a key. `workers` are those of this server. `shared`: they come over arenas. `log`: how many acts
    are kept.
    """

    name: str
    workers: int
    chunk_elements: ArrayLike
    chunk_keys: ArrayLike
    slots: ArrayLike
    key_types: Sequence[KeyType]
    key_groups: ArrayLike
    settings: ArrayLike
    optimizer: OptimizerName
    racks: int = 1
    rack: int = 0
    owners: ArrayLike | None = None
    synchronous: bool = True
    arrival_order: bool = False
    wide: bool = False
    bypass: bool = False
    shared: bool = False
    snapshot_every: int = 0
    log: int = 0


@dataclass(frozen=True)
class NativeEvent:
    """`worker` is the rack of a server that is gone (PEER)."""

    what: int
    job: int
    worker: int
    step: int
    text: str


class _Job(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        *((name, ctypes.c_int32) for name in ("workers", "racks", "rack", "keys", "groups")),
        ("chunks", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("chunk_elements", "chunk_key", "chunk_slot", "chunk_owner")),
        *((name, ctypes.c_void_p) for name in ("key_type", "key_group", "settings")),
        *((name, ctypes.c_int32) for name in ("optimizer", "synchronous", "arrival_order", "wide", "bypass", "shared")),
        ("snapshot_every", ctypes.c_int32),
        ("log", ctypes.c_int64),
    ]


class _Event(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("what", "job", "worker", "unused")),
        ("step", ctypes.c_uint64),
        ("text", ctypes.c_char * 224),
    ]


LOGGED = np.dtype(
    [("time", "u8"), ("step", "u8"), *((name, "i4") for name in ("chunk", "worker", "thread", "act"))],
)
"""A line of the log: ns of the monotonic clock, and which thread did what with which chunk; `worker` is -1 for none."""


def server_texts() -> dict[str, str]:
    """The files that the server is compiled from, by name."""
    return texts("server") | wire_texts("treadle.runtime.server.wire")


@cache
def library() -> Any:
    """The compiled server. Raises MissingBackendError without g++."""
    built = compile_library(server_texts(), "server.cpp", "process", ("-fno-math-errno",))
    return bound(ctypes.CDLL(str(built)))


def bound(loaded: ctypes.CDLL) -> Any:
    """A compiled server with the types of its calls, for this PyTorch."""
    follow_pytorch(loaded)
    handle, number, pointer = ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    for name, result, arguments in (
        ("server_open", handle, [number, pointer]),
        ("server_add_job", number, [handle, pointer]),
        ("server_stream", number, [handle, number, number, number, number]),
        ("server_arena", number, [handle, number, number, number, number, pointer, number, pointer]),
        ("server_bell", number, [handle, number]),
        ("server_peer", number, [handle, number, number, number, number]),
        ("server_drop", number, [handle, number, number, ctypes.c_char_p]),
        ("server_events", number, [handle, pointer, number, number]),
        ("server_versions", number, [handle, number, pointer, pointer]),
        ("server_read", number, [handle, number, ctypes.c_uint64, number, pointer, pointer]),
        ("server_load", number, [handle, number, ctypes.c_uint64, pointer, pointer, pointer]),
        ("server_copy", number, [handle, number, ctypes.c_uint64, number, pointer, pointer]),
        ("server_release", number, [handle, number]),
        ("server_log", ctypes.c_int64, [handle, number, pointer, ctypes.c_int64]),
        ("server_counts", None, [handle, number, pointer]),
        ("server_close", None, [handle]),
        ("server_message", ctypes.c_char_p, [handle]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class Engine:
    """A running server of `cores` threads, each bound to one of `processors` unless that is None or -1 for it.

    Calls raise CheckFailed for what the server refuses, LimitError where memory is not there. Calls that take file
    descriptors own them from then on, also when they fail. They may come from any thread, `events` from one.
    """

    def __init__(self, cores: int, processors: Sequence[int] | None = None, *, native: Any = None) -> None:
        self.cores = cores
        self._library = native or library()
        self._jobs: list[tuple[int, int, int]] = []
        self._lock = threading.Lock()
        bindings = None if processors is None else np.asarray(processors, np.int32)
        if bindings is not None and bindings.shape != (cores,):
            raise CheckFailed(f"{bindings.size} processors for {cores} cores")
        self._handle = self._library.server_open(cores, None if bindings is None else bindings.ctypes.data)
        if not self._handle:
            raise CheckFailed(f"the server does not start: {self._library.server_message(None).decode()}")

    def add(self, job: NativeJob) -> int:
        """The job's number here. Its memory is taken and touched before this returns."""
        types = np.array([TYPE_NUMBERS[each] for each in job.key_types], np.int32)
        elements = np.ascontiguousarray(job.chunk_elements, np.int64)
        keys, slots, groups = (
            np.ascontiguousarray(each, np.int32) for each in (job.chunk_keys, job.slots, job.key_groups)
        )
        owners = None if job.owners is None else np.ascontiguousarray(job.owners, np.int32)
        settings = np.ascontiguousarray(job.settings, np.float64).reshape(-1, SETTINGS_NUMBERS)
        if {len(elements)} != {len(each) for each in (keys, slots, elements if owners is None else owners)}:
            raise CheckFailed(f"job {job.name}: chunks without a key, slot or owner")
        if len(groups) != len(types):
            raise CheckFailed(f"job {job.name}: {len(groups)} groups of {len(types)} keys")
        native = _Job(
            os.fsencode(job.name),
            *(job.workers, job.racks, job.rack, len(types), len(settings), len(elements)),
            *(elements.ctypes.data, keys.ctypes.data, slots.ctypes.data),
            None if owners is None else owners.ctypes.data,
            *(types.ctypes.data, groups.ctypes.data, settings.ctypes.data),
            OPTIMIZER_NUMBERS[job.optimizer],
            *(job.synchronous, job.arrival_order, job.wide, job.bypass, job.shared, job.snapshot_every, job.log),
        )
        number = self._call("add_job", ctypes.byref(native))
        self._jobs.append((int(elements.sum()), len(elements), STATES[job.optimizer]))
        return number

    def stream(self, job: int, worker: int, core: int, descriptor: int) -> None:
        """Serve a worker's chunks of one core over a connected stream. A worker that was lost may come again so."""
        self._call("stream", job, worker, core, descriptor)

    def peer(self, job: int, rack: int, core: int, descriptor: int) -> None:
        """Exchange sums and values of one core with the server of another rack."""
        self._call("peer", job, rack, core, descriptor)

    def arena(
        self,
        job: int,
        worker: int,
        first: int,
        memfd: int,
        bells: Sequence[int],
        cores: Sequence[int] | None = None,
    ) -> None:
        """Serve a worker of this host over its arena: rings `first` and those behind it belong to `cores` (by default
        all of them); `bells` are the worker's eventfds for them."""
        chosen = np.asarray(range(len(bells)) if cores is None else cores, np.int32)
        own = np.asarray(bells, np.int32)
        if chosen.shape != own.shape:
            raise CheckFailed(f"{own.size} bells for {chosen.size} cores")
        self._call("arena", job, worker, first, own.size, chosen.ctypes.data, memfd, own.ctypes.data)

    def bell(self, core: int) -> int:
        """The eventfd that wakes a core, to pass to workers; it stays the server's."""
        return int(self._library.server_bell(self._handle, core))

    def drop(self, job: int, worker: int, reason: str) -> None:
        """End a worker's streams with a text. What it has sent of the next version still counts."""
        self._call("drop", job, worker, reason.encode())

    def events(self, timeout: float = 0.0) -> list[NativeEvent]:
        """What has happened since the last call; waits for it for up to `timeout` seconds. For one thread only."""
        found = (_Event * MOST_EVENTS)()
        count = self._library.server_events(self._handle, found, MOST_EVENTS, round(timeout * 1000))
        return [
            NativeEvent(each.what, each.job, each.worker, each.step, each.text.decode(errors="replace"))
            for each in found[:count]
        ]

    def versions(self, job: int) -> tuple[int, int]:
        """The least and the highest version of this server's chunks."""
        least, most = ctypes.c_uint64(), ctypes.c_uint64()
        self._call("versions", job, ctypes.byref(least), ctypes.byref(most))
        return least.value, most.value

    def read(self, job: int, version: int, part: int) -> tuple[Floats, Counts]:
        """Weights (part 0) or a state (1, 2) of all elements of the model, and the updates of each chunk; 0 for those
        of other servers. The latest version is there, and the one before it."""
        return self._copied("read", job, version, part)

    def copy(self, job: int, version: int, part: int) -> tuple[Floats, Counts]:
        """The same from the copy that a SNAPSHOT event reports, until it is released."""
        return self._copied("copy", job, version, part)

    def _copied(self, call: str, job: int, version: int, part: int) -> tuple[Floats, Counts]:
        elements, chunks, _ = self._job(job)
        values, updates = np.zeros(elements, np.float32), np.zeros(chunks, np.uint64)
        self._call(call, job, version, part, values.ctypes.data, updates.ctypes.data)
        return values, updates

    def release(self, job: int) -> None:
        """Let the next snapshot take the memory of the copy."""
        self._call("release", job)

    def load(
        self,
        job: int,
        version: int,
        weights: Floats,
        states: Sequence[Floats] = (),
        updates: Counts | None = None,
    ) -> None:
        """Set all of a job, while nothing of it is in flight; states that are not given become 0."""
        elements, chunks, count = self._job(job)
        parts = [np.ascontiguousarray(each, np.float32).ravel() for each in (weights, *states)]
        made = np.zeros(chunks, np.uint64) if updates is None else np.ascontiguousarray(updates, np.uint64)
        if {each.size for each in parts} != {elements} or made.size != chunks or len(states) not in (0, count):
            raise CheckFailed(f"a state that is not one of {elements} elements in {chunks} chunks with {count} states")
        pointers = (ctypes.c_void_p * 2)(*(each.ctypes.data for each in parts[1:]))
        self._call("load", job, version, parts[0].ctypes.data, pointers, made.ctypes.data)

    def log(self, job: int, most: int = 1 << 20) -> NDArray[Any]:
        """The first acts, as LOGGED, while nothing is in flight."""
        found = np.zeros(most, LOGGED)
        return found[: self._call("log", job, found.ctypes.data, most)]

    def counts(self, core: int) -> dict[str, int]:
        """What a core has done since the start, by the names of COUNTS."""
        found = np.zeros(len(COUNTS), np.uint64)
        self._library.server_counts(self._handle, core, found.ctypes.data)
        return dict(zip(COUNTS, found.tolist(), strict=True))

    def _job(self, job: int) -> tuple[int, int, int]:
        if not 0 <= job < len(self._jobs):
            raise CheckFailed(f"no job {job}")
        return self._jobs[job]

    def _call(self, name: str, *arguments: Any) -> int:
        with self._lock:
            if not self._handle:
                raise CheckFailed("the server is closed")
            result = int(getattr(self._library, f"server_{name}")(self._handle, *arguments))
            if result >= 0:
                return result
            text = self._library.server_message(self._handle).decode()
        raise (LimitError if result == NO_MEMORY else CheckFailed)(text)

    def close(self) -> None:
        """End all threads and streams; calls are refused afterwards. While no thread waits for events."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle:
                self._library.server_close(handle)
