"""Memory for the states of machines (`wire/holder.cpp`): two versions of each, filled by streams and verified."""

from __future__ import annotations

import ctypes
import mmap
import socket
import struct
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import CheckFailed, LimitError
from treadle.runtime.checkpoint.welcome import HeldVersion
from treadle.runtime.native_build import compile_library
from treadle.runtime.wire.control_stream import FULL_SECONDS, tune
from treadle.runtime.wire.texts import wire_texts

NO_LIMIT = (1 << 64) - 1
REPORT_BYTES = 1 << 16
Bytes = NDArray[np.uint8]


class StateOf(NamedTuple):
    """Whose state: a machine and one of its devices, from 0."""

    machine: int
    device: int


class _Held(ctypes.Structure):
    _fields_ = [
        ("machine", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("version", "bytes", "at")),
        ("sum", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    ]


class PlacedVersion(HeldVersion, frozen=True):
    """`at`: where it begins in the memory of its state."""

    at: int


@cache
def library() -> Any:
    """The compiled memory. Raises MissingBackendError without g++."""
    loaded = ctypes.CDLL(str(compile_library(wire_texts("treadle.runtime.checkpoint.wire"), "holder.cpp", "process")))
    handle, number, word, pointer = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p
    for name, result, arguments in (
        ("holder_open", handle, [pointer, number, word, number, word]),
        ("holder_stop", None, [handle]),
        ("holder_close", None, [handle]),
        ("holder_message", ctypes.c_char_p, []),
        ("holder_memfd", number, [handle, number]),
        ("holder_stream", number, [handle, number, word, ctypes.c_char_p]),
        ("holder_epoch", None, [handle, word]),
        ("holder_forget", None, [handle, word]),
        ("holder_versions", number, [handle, pointer, number]),
        ("holder_verify", number, [handle, number, word]),
        ("holder_fetch", number, [handle, number, number, word, number, ctypes.c_char_p]),
        ("holder_reports", number, [handle, ctypes.c_char_p, number]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class StateMemory:
    """Holds `states`, each of up to `state_bytes`, in `halves` versions (1: only for what is fetched once).

    All memory is taken and touched here. A state that fills from one stream is never the whole version, which stays
    until the next one is whole. Calls may come from any thread. Raises LimitError, before it takes any, where the
    machine, a limit or `most_bytes` leaves too little, MissingBackendError without g++.
    """

    def __init__(
        self,
        states: Sequence[StateOf],
        state_bytes: int,
        *,
        halves: int = 2,
        most_bytes: int | None = None,
    ) -> None:
        self.states = tuple(states)
        self._library = library()
        self._idle = threading.Condition()
        self._calls = 0
        self._maps: dict[StateOf, mmap.mmap] = {}
        names = np.array(self.states, np.uint32)
        most = NO_LIMIT if most_bytes is None else most_bytes
        self._handle = self._library.holder_open(names.ctypes.data, len(names), state_bytes, halves, most)
        if not self._handle:
            raise LimitError(self._message())

    def stream(self, stream: socket.socket, epoch: int, name: str) -> None:
        """Serve a stream that is authenticated, in a thread of its own, until it ends; it is the memory's from now on.
        `name` is what reports call its other end. Raises CheckFailed for one of an earlier epoch than was set."""
        self._check(self._call("stream", _given(stream), epoch, name.encode()))

    def set_epoch(self, epoch: int) -> None:
        """End the streams of earlier epochs; what they have begun is lost."""
        self._call("epoch", epoch)

    def forget(self, above: int | None) -> None:
        """Drop the versions after `above` of all states, or all versions, also those that come just now: a job goes on
        from there, and what is newer belongs to a past that others have lost. After set_epoch, so that none comes
        later."""
        self._call("forget", 0 if above is None else above + 1)

    def versions(self) -> dict[StateOf, tuple[HeldVersion, ...]]:
        """The whole versions of each state, the latest first."""
        found = self._held()
        return {state: tuple(found[each] for each in found if each[0] == state) for state in self.states}

    def verify(self, version: int, machine: int | None = None) -> tuple[StateOf, ...]:
        """Read every piece of a version again (of one machine, by default of all) and return the states whose bytes
        are not what arrived; these versions are dropped. States without the version do not count."""
        asked = [each for each in self.states if machine in (None, each.machine)]
        return tuple(each for each in asked if self._call("verify", self.states.index(each), version) < 0)

    def fetch(self, stream: socket.socket, state: StateOf, version: int, seconds: float, name: str) -> None:
        """Take a whole version from another holder, called `name`, over a connected stream, which is closed afterwards;
        every piece and the whole are verified, there before they are offered and here. Versions that are not older
        go. Raises CheckFailed with the reason where that fails, or `seconds` pass without a byte."""
        number, limit = self.states.index(state), max(1, round(seconds * 1000))
        self._check(self._call("fetch", _given(stream), number, version, limit, name.encode()))

    def view(self, state: StateOf, version: int) -> Bytes:
        """The bytes of a whole version where they lie, not a copy: until the next BEGIN, also after `close`. Writing to
        it is what a bad memory would do. Raises CheckFailed where it is not there."""
        held = self._held().get((state, version))
        if held is None:
            raise CheckFailed(f"version {version} of machine {state.machine}, device {state.device} is not there")
        if state not in self._maps:
            self._maps[state] = mmap.mmap(self.memfd(state), 0)
        return np.frombuffer(self._maps[state], np.uint8, held.bytes, held.at)

    def memfd(self, state: StateOf) -> int:
        """The descriptor of a state's memory, which stays the memory's."""
        return self._call("memfd", self.states.index(state))

    def reports(self) -> list[str]:
        """What has happened since the last call: streams that ended while they filled a state, pieces with a wrong
        sum, damaged versions. Each is a line that names the machine, the state and the version."""
        text = ctypes.create_string_buffer(REPORT_BYTES)
        count = self._call("reports", text, REPORT_BYTES)
        return text.raw[:count].decode(errors="replace").splitlines()

    def close(self) -> None:
        """End all streams and give the memory back, once no call is in progress."""
        with self._idle:
            handle, self._handle = self._handle, None
            if not handle:
                return
            self._library.holder_stop(handle)
            self._idle.wait_for(lambda: not self._calls)
        self._library.holder_close(handle)

    def _held(self) -> dict[tuple[StateOf, int], PlacedVersion]:
        """All whole versions, by state and version."""
        most = 2 * len(self.states)
        found = (_Held * most)()
        count = self._call("versions", found, most)
        return {
            (StateOf(each.machine, each.device), each.version): PlacedVersion(
                each.version, each.bytes, each.sum, each.at
            )
            for each in found[:count]
        }

    def _call(self, name: str, *arguments: Any) -> int:
        """What the library answers. Any thread calls it; close() waits for all of them."""
        with self._idle:
            if not self._handle:
                raise CheckFailed("the memory of checkpoints is given back")
            handle = self._handle
            self._calls += 1
        try:
            return int(getattr(self._library, f"holder_{name}")(handle, *arguments) or 0)
        finally:
            with self._idle:
                self._calls -= 1
                self._idle.notify_all()

    def _check(self, result: int) -> None:
        if result < 0:
            raise CheckFailed(self._message())

    def _message(self) -> str:
        """Why this thread's last call failed."""
        return str(self._library.holder_message().decode(errors="replace"))


def _given(stream: socket.socket) -> int:
    """The descriptor, for the library: one that is lost after some time in which it takes no data."""
    tune(stream, FULL_SECONDS)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", FULL_SECONDS, 0))
    return stream.detach()
