"""A rank's side of checkpoints: its state, where it lies, to its own agent and to those of the other holders."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.checkpoint.decisions import OwnPiece, StatePiece
from treadle.runtime.checkpoint.frames import library
from treadle.runtime.checkpoint.local import LocalAgent
from treadle.runtime.sockets import close_in_forks
from treadle.runtime.wire.control_stream import FULL_SECONDS, tune
from treadle.runtime.wire.greeting import GREETING_SECONDS, Greeting, call

TIMES = np.dtype(
    [
        ("copy", "i4"),
        ("span", "i4"),
        *((name, "u8") for name in ("offset", "bytes", "released", "begun", "sent", "taken")),
    ]
)
"""One piece: `copy` 0 is the own one, whose span is its message (AFTER_ALL for what comes after them). Times are ns of
the monotonic clock, 0 for what has not happened: its span was released, its first byte is read, its last byte has left
this process, its holder has verified it."""
AFTER_ALL = (1 << 31) - 1
"""The span of pieces that only a drain releases."""
SEGMENT = np.dtype([("address", "u8"), ("bytes", "u8")])
LOST = 2
AGAIN_SECONDS = 1.0
UNSENT_BYTES = 1 << 18
"""How much of a stream the kernel may hold that it has not sent: less delay for messages of the training behind it."""


class _Report(ctypes.Structure):
    _fields_ = [
        ("state", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("verified", ctypes.c_uint64),
        ("why", ctypes.c_char * 496),
    ]


@dataclass(frozen=True)
class Drained:
    """What became of a version: the machines that hold it whole, and why others do not ("machine 3 at 10.0.0.3:7000
    closed its stream after 40 of 120 pieces")."""

    version: int
    held: tuple[int, ...]
    failed: Mapping[int, str]


class Sender:
    """Sends the state of one rank to `holders` (machines, its own first), in the pieces that a plan decided. A context.

    A native thread for each holder reads tensors where they lie; none waits for another. At most `window` pieces of a
    holder are in flight at once (1 for the variant without a pipeline; the plan's buffers). A holder that cannot be
    reached is lost from the begin. Raises CheckFailed where the own agent is gone.
    """

    holders: tuple[int, ...]

    def __init__(
        self,
        agent: LocalAgent,
        holders: Sequence[int],
        pieces: Sequence[StatePiece],
        own: Sequence[OwnPiece],
        *,
        window: int,
    ) -> None:
        self._agent, self.holders = agent, tuple(holders)
        self._library = library()
        self._streams: list[socket.socket | None] = [None] * len(self.holders)
        self._unreached: dict[int, str] = {}
        self._buffers: Sequence[Any] = ()
        self._version = -1
        welcome = agent.welcome
        rows = [(0, AFTER_ALL if each.message is None else each.message, each.offset, each.bytes) for each in own]
        rows += [(each.copy, each.span, each.offset, each.bytes) for each in pieces]
        planned = np.zeros(len(rows), TIMES)
        for name, values in zip(("copy", "span", "offset", "bytes"), zip(*rows, strict=True), strict=False):
            planned[name] = values
        if rows and not 0 <= planned["copy"].min() <= planned["copy"].max() < len(self.holders):
            raise InputError(
                f"found pieces for copy {planned['copy'].max()}, expected one of {len(self.holders)} holders"
            )
        self._handle = self._library.sender_open(
            welcome.machine,
            agent.device,
            len(self.holders),
            welcome.state_bytes,
            window,
            planned.ctypes.data,
            len(planned),
        )
        try:
            self._connect(0, self._stream(0, GREETING_SECONDS))
            self.reconnect(GREETING_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def lost(self) -> dict[int, str]:
        """Machines that get nothing any more, and why, until `reconnect`."""
        reports = {copy: self._report(copy) for copy in range(len(self.holders))}
        return {
            self.holders[copy]: self._unreached.get(copy) or report.why.decode(errors="replace")
            for copy, report in reports.items()
            if report.state == LOST
        }

    def begin(self, version: int, buffers: Sequence[Any], *, wait_seconds: float = 0.0) -> None:
        """A new version, the bytes of `buffers` one after the other: contiguous tensors, arrays, or pairs (address,
        bytes) in host memory, which must not change until drain() returns. Nothing of it leaves before it is released,
        but holders learn at once that it begins; with `wait_seconds` it returns once all have, or after that time, so
        that versions which are not older are gone there. Raises CheckFailed where the version before is not drained,
        or the state is larger than the plan says."""
        segments = np.array([_segment(each) for each in buffers], SEGMENT)
        if self._library.sender_begin(self._handle, version, segments.ctypes.data, len(segments)):
            raise CheckFailed(self._library.sender_message().decode())
        self._buffers, self._version = tuple(buffers), version
        if wait_seconds:
            self._library.sender_begun(self._handle, round(wait_seconds * 1000))

    def release(self, span: int) -> None:
        """Let the pieces of spans up to this one leave."""
        self._library.sender_release(self._handle, span, 0)

    def release_own(self, message: int | None) -> None:
        """Let the own copies of messages up to this one be made; None: all of them."""
        self._library.sender_release(self._handle, AFTER_ALL if message is None else message, 1)

    def drain(self, seconds: float) -> Drained:
        """Let all leave that is left, and wait until every holder has the version whole or is lost. One that is not
        done within `seconds` is lost too, since the state may change afterwards."""
        self._library.sender_drain(self._handle, max(0, round(seconds * 1000)))
        self._buffers = ()
        failed = self.lost
        return Drained(self._version, tuple(each for each in self.holders if each not in failed), failed)

    def reconnect(self, patience: float = AGAIN_SECONDS) -> None:
        """Try holders that are lost again, once and side by side, with `patience` seconds for hosts that answer
        nothing; those that answer take part from the next begin() on."""
        lost = [copy for copy in range(len(self.holders)) if self._report(copy).state == LOST]
        if not lost:
            return
        with ThreadPoolExecutor(len(lost), "treadle-reconnect") as threads:
            tried = [(copy, threads.submit(self._stream, copy, patience)) for copy in lost]
        for copy, stream in tried:
            try:
                self._connect(copy, stream.result())
            except (CheckFailed, InputError, KeyError, OSError) as error:
                self._unreached[copy] = str(error)

    def times(self) -> NDArray[Any]:
        """The pieces of the last version, as TIMES, in the order of their holders."""
        found = np.zeros(self._library.sender_times(self._handle, None, 0), TIMES)
        self._library.sender_times(self._handle, found.ctypes.data, len(found))
        return found

    def close(self) -> None:
        """End all streams: a version that is not drained is lost."""
        handle, self._handle = self._handle, None
        if handle:
            self._library.sender_close(handle)
        for stream in self._streams:
            if stream is not None:
                stream.close()

    def _stream(self, copy: int, patience: float) -> socket.socket:
        """A connection to a holder's agent."""
        agent, machine = self._agent, self.holders[copy]
        welcome = agent.welcome
        if machine == welcome.machine:
            return agent.stream()
        if machine not in welcome.peers:
            raise CheckFailed(f"the agent of machine {welcome.machine} knows no agent of machine {machine}")
        greeting = Greeting("rank", agent.rank, agent.namespace, session=welcome.epoch)
        stream, _ = call(welcome.peers[machine], greeting, agent.nonce, patience=patience)
        return stream

    def _connect(self, copy: int, stream: socket.socket) -> None:
        """A new lane to a holder."""
        agent, machine = self._agent, self.holders[copy]
        if machine == agent.welcome.machine:
            memory, name = agent.memory(machine).ctypes.data, f"the agent of machine {machine}"
        else:
            host, port = agent.welcome.peers[machine]
            memory, name = None, f"machine {machine} at {host}:{port}"
        tune(stream, FULL_SECONDS)
        with suppress(OSError, AttributeError):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        close_in_forks(stream)
        self._library.sender_lane(self._handle, copy, stream.fileno(), memory, name.encode())
        before, self._streams[copy] = self._streams[copy], stream
        if before is not None:
            before.close()
        self._unreached.pop(copy, None)

    def _report(self, copy: int) -> _Report:
        report = _Report()
        self._library.sender_report(self._handle, copy, ctypes.byref(report))
        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _segment(buffer: Any) -> tuple[int, int]:
    """Address and bytes."""
    if isinstance(buffer, tuple):
        address, count = buffer
        return int(address), int(count)
    if hasattr(buffer, "data_ptr"):
        if buffer.device.type != "cpu" or not buffer.is_contiguous():
            raise CheckFailed("a tensor of a state is not contiguous in host memory")
        return buffer.data_ptr(), buffer.numel() * buffer.element_size()
    view = memoryview(buffer)
    return (np.frombuffer(view, np.uint8).ctypes.data, view.nbytes) if view.nbytes else (0, 0)
