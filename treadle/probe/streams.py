"""TCP streams between the processes that measure: one side sends as fast as it can, the other counts what arrives."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from termios import FIONREAD

from treadle.probe.signing import TAG_BYTES, payload_of, signed

SETTLE_SECONDS, COUNT_SECONDS, SHARED_FACTOR, LAST_SECONDS = 0.1, 0.3, 2, 0.05
"""Time until a stream has its rate, and time to count bytes; factor of both if several share links; time for others."""
CONNECT_SECONDS = 30.0
BUFFER_BYTES, PART_BYTES = 1 << 19, 1 << 17
STREAM, PLACE_BYTES = b"stream", 4
ROUND_TRIPS = 100

Pair = tuple[int, int]


@dataclass(frozen=True)
class Listener:
    """Where this process accepts streams. Connections from processes without `nonce` are closed."""

    server: socket.socket
    nonce: bytes

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.server.getsockname()[:2]
        return str(host), int(port)


def listen(address: str, nonce: bytes) -> Listener:
    """Accept streams at `address` on any free port. Raises OSError."""
    server = socket.create_server((address, 0), backlog=512)
    server.settimeout(CONNECT_SECONDS)
    return Listener(server, nonce)


def connected(
    listener: Listener, me: int, pairs: Mapping[int, Pair], addresses: Mapping[int, tuple[str, int]]
) -> tuple[dict[int, socket.socket], dict[int, socket.socket]]:
    """Open the streams of `pairs`, by their places, that begin or end here: (outgoing, incoming), by place.

    Raises OSError, TimeoutError included.
    """
    outgoing: dict[int, socket.socket] = {}
    incoming: dict[int, socket.socket] = {}
    for place, (src, dst) in pairs.items():
        if src == me:
            stream = socket.socket()
            stream.settimeout(CONNECT_SECONDS)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.bind((listener.address[0], 0))
            stream.connect(addresses[dst])
            stream.sendall(signed(place.to_bytes(PLACE_BYTES, "big"), listener.nonce, STREAM))
            outgoing[place] = stream
    expected = {place for place, (_, dst) in pairs.items() if dst == me}
    while expected - incoming.keys():
        stream, _ = listener.server.accept()
        stream.settimeout(CONNECT_SECONDS)
        try:
            greeting = _exactly(stream, PLACE_BYTES + TAG_BYTES)
        except OSError:
            stream.close()
            continue
        payload = payload_of(greeting, listener.nonce, STREAM)
        place = -1 if payload is None else int.from_bytes(payload, "big")
        if place not in expected - incoming.keys():
            stream.close()
            continue
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        incoming[place] = stream
    return outgoing, incoming


def rates(
    outgoing: dict[int, socket.socket], incoming: dict[int, socket.socket], *, is_alone: bool
) -> dict[int, float]:
    """Send on all of `outgoing` and count on all of `incoming` at once; bytes per second of the latter.

    `is_alone`: no other stream of the experiment shares links with them.
    """
    factor = 1 if is_alone else SHARED_FACTOR
    begin = time.perf_counter() + factor * SETTLE_SECONDS
    finish = begin + factor * COUNT_SECONDS
    end = threading.Event()
    with ThreadPoolExecutor(max(1, len(outgoing) + len(incoming))) as pool:
        sending = [pool.submit(_send, stream, end) for stream in outgoing.values()]
        try:
            counting = {
                place: pool.submit(_count, stream, begin, finish, is_alone) for place, stream in incoming.items()
            }
            found = {place: job.result() for place, job in counting.items()}
            if not incoming:
                time.sleep(max(0.0, finish - time.perf_counter()))
            time.sleep(LAST_SECONDS)  # others may still count what arrives from here
        finally:
            end.set()
            for stream in outgoing.values():
                _drop(stream)
        for job in sending:
            job.result()
    for stream in incoming.values():
        _drop(stream)
    return found


def latency_us(stream: socket.socket, *, starts: bool) -> float:
    """Half of the median round trip of one byte, microseconds; both ends call this."""
    times = []
    for _ in range(ROUND_TRIPS):
        begun = time.perf_counter()
        if starts:
            stream.sendall(b"x")
            _exactly(stream, 1)
        else:
            _exactly(stream, 1)
            stream.sendall(b"x")
        times.append(time.perf_counter() - begun)
    return sorted(times)[len(times) // 2] / 2 * 1e6


def _send(stream: socket.socket, end: threading.Event) -> None:
    part = bytes(PART_BYTES)
    try:
        while not end.is_set():
            stream.sendall(part)
    except OSError:  # the receiver has counted enough and closed
        return


def _count(stream: socket.socket, begin: float, end: float, is_alone: bool) -> float:
    """Bytes per second that arrive from `begin` to `end`.

    A stream alone arrives steadily and is timed between two moments at which all that had arrived was read, the first
    and the last of that time: on a busy machine this side reads late and then much at once. Streams that share a link
    arrive in bursts; all are divided by the same time, so that their sum is what the link carries.
    """
    part = bytearray(PART_BYTES)
    count = 0
    moments: list[tuple[float, int]] = []
    read_all: list[tuple[float, int]] = []
    while True:
        try:
            size = stream.recv_into(part)
        except ConnectionResetError:  # on a busy machine the sender may be through before this side is
            end = min(end, time.perf_counter())
            break
        now = time.perf_counter()
        if not size or now > end:
            break
        if now >= begin:
            count += size
            moments.append((now, count))
            if is_alone and not _waiting_bytes(stream):
                read_all.append((now, count))
    if not is_alone:
        return count / (end - begin) if end > begin else 0.0
    timed = read_all if len(read_all) > 1 else moments  # a link that is faster than this side never leaves it idle
    if len(timed) < 2 or timed[-1][0] <= timed[0][0]:
        return 0.0
    return (timed[-1][1] - timed[0][1]) / (timed[-1][0] - timed[0][0])


def _waiting_bytes(stream: socket.socket) -> int:
    return int.from_bytes(ioctl(stream, FIONREAD, bytes(4)), sys.byteorder)


def _drop(stream: socket.socket) -> None:
    """Close without sending what is still in the buffers, which would slow what is measured next. A thread that waits
    to send ends: closing alone would leave it until its timeout, as it holds the connection open."""
    with suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    stream.close()


def _exactly(stream: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = stream.recv(size - len(found))
        if not part:
            raise ConnectionError("the other side closed the connection")
        found += part
    return found
