"""A control stream: messages of JSON, some with a binary body or, between processes of one host, with descriptors."""

from __future__ import annotations

import array
import os
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import CheckFailed

HEAD = struct.Struct("!IQ")
MOST_JSON = 1 << 28
MOST_DESCRIPTORS = 253
"""SCM_MAX_FD of Linux."""
SILENT_SECONDS = 4
"""A host that has not answered for so long is gone. A process that is only stopped is not: its kernel answers."""
FULL_SECONDS = 60
"""A process that is stopped may take no data for so long. A host that is gone is known from the control stream."""
_encode = msgspec.json.encode


class Received(NamedTuple):
    message: Any
    body: memoryview
    descriptors: tuple[int, ...]


class ControlStream:
    """Either end of a control stream that is authenticated. Any thread sends; one thread receives `kinds`."""

    def __init__(self, stream: socket.socket, kinds: Any) -> None:
        tune(stream)
        self.stream = stream
        self.local = stream.family == socket.AF_UNIX
        self._decoder = msgspec.json.Decoder(kinds)
        self._sending = threading.Lock()
        _open_here.add(self)

    def send(
        self, message: msgspec.Struct, *parts: memoryview, descriptors: Sequence[int] = (), seconds: float | None = None
    ) -> None:
        """`parts`, of bytes, follow the message. Raises OSError where the other end is gone, TimeoutError where it
        takes nothing for `seconds`; the stream must not be used then."""
        words = _encode(message)
        head = HEAD.pack(len(words), sum(part.nbytes for part in parts)) + words
        with self._sending:
            if seconds is not None:
                self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), 0))
            if descriptors:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                head = head[self.stream.sendmsg([head], ancillary) :]
            for part in (memoryview(head), *parts):
                self.stream.sendall(part)

    def receive(self, most_body: Callable[[], int] = lambda: 0) -> Received:
        """The next message. Raises OSError where the stream ends, and CheckFailed for what is no message or has a body
        of more bytes than `most_body` says once it comes."""
        descriptors: list[int] = []
        try:
            head = self._exactly(HEAD.size, descriptors)
            length, bytes_ = HEAD.unpack(head)
            most = most_body()
            if length > MOST_JSON or bytes_ > most:
                raise CheckFailed(f"a message of {length} + {bytes_} bytes, expected at most {MOST_JSON} + {most}")
            words = self._exactly(length)
            try:
                message = self._decoder.decode(words)
            except msgspec.DecodeError as error:
                raise CheckFailed(f"no message of this version of treadle: {error}") from None
            return Received(message, self._exactly(bytes_), tuple(descriptors))
        except BaseException:
            close_all(descriptors)
            raise

    def _exactly(self, count: int, descriptors: list[int] | None = None) -> memoryview:
        """The next `count` bytes; descriptors that come with them are added to the list."""
        data = memoryview(bytearray(count))
        have = 0
        while have < count:
            if self.local and descriptors is not None:
                part, found, _, _ = socket.recv_fds(self.stream, count - have, MOST_DESCRIPTORS)
                descriptors.extend(found)
                data[have : have + len(part)] = part
                got = len(part)
            else:
                got = self.stream.recv_into(data[have:])
            if not got:
                raise ConnectionResetError("the stream ended")
            have += got
        return data

    def close(self) -> None:
        """End both directions: a thread that receives wakes up."""
        with suppress(OSError):
            self.stream.shutdown(socket.SHUT_RDWR)
        self.stream.close()


_open_here: weakref.WeakSet[ControlStream] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """A forked process, as of a DataLoader, holds no stream: it would hide its parent's death."""
    for each in list(_open_here):
        each.stream.close()


os.register_at_fork(after_in_child=_leave_to_parent)


def tune(stream: socket.socket, seconds: int = SILENT_SECONDS) -> None:
    """No delay of small messages, and a host that is silent, or takes nothing for `seconds`, is lost."""
    stream.settimeout(None)
    if stream.family == socket.AF_UNIX:
        return
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", SILENT_SECONDS - 1),
        ("TCP_USER_TIMEOUT", seconds * 1000),
    ):
        if hasattr(socket, option):
            stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def close_all(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)


def raw(values: NDArray[Any]) -> memoryview:
    """The bytes of an array, without a copy where it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
