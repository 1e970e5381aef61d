"""The compiled end of a worker (`wire/client.cpp`): it pushes gradients and pulls values, chunk by chunk."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.server.chunking import chunk_elements, padded
from treadle.planner.passes.server.keys import TYPE_BYTES, TYPE_NUMBERS
from treadle.planner.passes.server.problem import SETTINGS_NUMBERS
from treadle.runtime.native_build import compile_library
from treadle.runtime.server.messages import JobLayout
from treadle.runtime.wire.texts import wire_texts

PUSH, PUSH_PULL, PULL = 1, 2, 3
_HEADERS = ("arena.h", "crc.h", "frame.h", "job.h", "places.h", "reader.h", "rings.h", "streams.h")
_TEXTS = (*_HEADERS, "client.cpp", "client_keys.h", "client_lane.h")


class _Layout(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("keys", "servers", "groups", "unused")),
        ("chunks", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in ("chunk_elements", "chunk_key", "chunk_server", "chunk_slot", "slots", "key_type")
        ),
    ]


@cache
def library() -> Any:
    """Compiled, or found in the cache. Raises MissingBackendError without g++."""
    found = wire_texts("treadle.runtime.server.wire")
    texts = {name: found[name] for name in _TEXTS}
    loaded = ctypes.CDLL(str(compile_library(texts, "client.cpp", "process")))
    pointer, integer, step = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64
    for name, result, arguments in (
        ("client_open", pointer, [pointer]),
        ("client_close", None, [pointer]),
        ("client_message", ctypes.c_char_p, []),
        ("client_buffer", ctypes.c_int64, [pointer, integer, pointer]),
        ("client_memfd", integer, [pointer]),
        ("client_bell", integer, [pointer]),
        ("client_stream", integer, [pointer, integer, integer, integer]),
        ("client_rings", integer, [pointer, integer, pointer]),
        ("client_push", integer, [pointer, integer, step, integer, integer]),
        ("client_settings", integer, [pointer, step, pointer, integer]),
        ("client_wait", integer, [pointer, integer, step, integer]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class Client:
    """A worker's streams to all cores of its servers, and the memory that is moved over them.

    First every core slot of every server gets a stream, or every server rings; then requests are made. The thread that
    moves chunks reads the gradients of a key from its push until that is done (over rings: until the value of its
    step is there), and writes values as they come. Calls may come from any thread.
    """

    elements: NDArray[np.int64]
    """How many each chunk has."""
    memfd: int
    """The arena, to pass to servers on this host."""

    def __init__(self, layout: JobLayout) -> None:
        """Raises InputError where memory or files are missing, MissingBackendError without a compiler."""
        self._handle: int | None = None
        native = library()
        slots = _slots(layout)
        self._numbers = {server: number for number, server in enumerate(slots)}
        self._slots = tuple(map(len, slots.values()))
        servers, places = _places(layout, self._numbers)
        self.elements, key = _chunks(layout)
        chosen = np.fromiter(chain.from_iterable(layout.places), np.int64)
        if len(chosen) != len(key):
            raise InputError(f"{len(chosen)} places, where keys have {len(key)} chunks")
        where = servers[chosen], places[chosen]
        types = np.array([TYPE_NUMBERS[each.dtype] for each in layout.keys], np.int32)
        counts = np.array(self._slots, np.int32)
        told = _Layout(
            len(types),
            len(counts),
            layout.groups,
            0,
            len(key),
            *(each.ctypes.data for each in (self.elements, key, *where, counts, types)),
        )
        handle = native.client_open(ctypes.byref(told))
        if handle is None:
            raise InputError(f"cannot open a worker's end: {_message()}")
        self._handle = handle
        self.memfd = native.client_memfd(handle)
        self._groups = layout.groups
        bytes_ = np.array([each.elements * TYPE_BYTES[each.dtype] for each in layout.keys])
        lines = padded(bytes_)
        self._ranges = tuple(zip((np.cumsum(lines) - lines).tolist(), bytes_.tolist(), strict=True))
        arena = mmap(self.memfd, 0)
        self._gradients, self._values = (self._buffer(arena, values) for values in (0, 1))

    def _buffer(self, arena: mmap, values: int) -> NDArray[np.uint8]:
        total = ctypes.c_int64()
        begin = library().client_buffer(self._handle, values, ctypes.byref(total))
        return np.frombuffer(arena, np.uint8, total.value, begin)

    def gradient(self, key: int) -> NDArray[np.uint8]:
        """The bytes of a key's gradient; the view stays valid when the client is closed."""
        begin, count = self._ranges[key]
        return self._gradients[begin : begin + count]

    def value(self, key: int) -> NDArray[np.uint8]:
        """The bytes of a key's values; the view stays valid when the client is closed."""
        begin, count = self._ranges[key]
        return self._values[begin : begin + count]

    def bells(self, server: int) -> tuple[int, ...]:
        """The eventfds that wake this end, one for each core slot of a server: all are the same."""
        return (library().client_bell(self._open),) * self._slots[self._numbers[server]]

    def stream(self, server: int, slot: int, descriptor: int) -> None:
        """Take a greeted stream to a core slot, in the server's own numbering; it is closed with the client."""
        self._done(library().client_stream(self._open, self._numbers[server], slot, descriptor))

    def rings(self, server: int, bells: Sequence[int]) -> None:
        """Take the eventfds of a server's core slots, whose rings are then used; they are closed with the client."""
        number = self._numbers[server]
        if len(bells) != self._slots[number]:
            raise CheckFailed(f"server {server} has {len(bells)} bells for {self._slots[number]} core slots")
        self._done(library().client_rings(self._open, number, (ctypes.c_int * len(bells))(*bells)))

    def settings(self, step: int, numbers: NDArray[np.float64]) -> None:
        """Settings [groups, numbers] of the optimizer from version `step` on, ahead of what is pushed later."""
        numbers = np.ascontiguousarray(numbers, np.float64)
        if numbers.shape != (self._groups, SETTINGS_NUMBERS):
            raise InputError(f"settings of shape {numbers.shape}, expected {(self._groups, SETTINGS_NUMBERS)}")
        self._done(library().client_settings(self._open, step, numbers.ctypes.data, self._groups))

    def push(self, key: int, step: int, request: int, empty: bool = False) -> None:
        """Ask for all chunks of a key by PUSH, PUSH_PULL or PULL; returns at once. `empty`: without a gradient.

        Raises CheckFailed when a server is gone, or the key is not done with its last request; a PULL may follow its
        PUSH.
        """
        self._done(library().client_push(self._open, key, step, request, empty))

    def wait(self, key: int, step: int, timeout_ms: int = -1) -> bool:
        """Wait until a key, or every key for -1, is done with what was asked for last; False when it is too late.

        A PUSH is done when its gradient has left, others when all values are there. Raises CheckFailed when a server is
        gone, or `step` was not asked for.
        """
        result = library().client_wait(self._open, key, step, timeout_ms)
        self._done(min(result, 0))
        return bool(result == 0)

    def _done(self, result: int) -> None:
        if result:
            raise CheckFailed(_message())

    @property
    def _open(self) -> int:
        if self._handle is None:
            raise CheckFailed("the worker has left the job")
        return self._handle

    def close(self) -> None:
        """End all streams; calls are refused afterwards."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            library().client_close(handle)


def _places(layout: JobLayout, numbers: Mapping[int, int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Which of the servers that a worker reaches handles the chunks of each slot, and the position of the slot there:
    with two levels the rack's own has those of all others, at the same position."""
    position = [layout.slot_servers[:slot].count(server) for slot, server in enumerate(layout.slot_servers)]
    server = [0 if layout.two_level else numbers[each] for each in layout.slot_servers]
    return np.array(server, np.int32), np.array(position, np.int32)


def _slots(layout: JobLayout) -> dict[int, list[int]]:
    """The slots of each server that a worker reaches."""
    reached = [layout.server] if layout.two_level else sorted(set(layout.slot_servers))
    return {server: [slot for slot, its in enumerate(layout.slot_servers) if its == server] for server in reached}


def _chunks(layout: JobLayout) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Elements and key of each chunk."""
    elements, counts = chunk_elements(layout.keys, layout.chunk_bytes)
    return elements, np.repeat(np.arange(len(counts), dtype=np.int32), counts)


def _message() -> str:
    return str(library().client_message().decode())
