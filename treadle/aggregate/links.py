"""What the operating system knows of a wire's connections: round trips, and what they deliver while they are busy."""

from __future__ import annotations

import socket
import struct
from math import nan
from typing import NamedTuple

from treadle.runtime.collective.wire.native import RankWire

TCP_INFO_BYTES = 192
ROUND_TRIP = struct.Struct("=68xI")
COUNTERS = struct.Struct("=120xQ40xQQ")
"""tcpi_bytes_acked; tcpi_busy_time, of which tcpi_rwnd_limited waited for the receiver, both in us."""
LEAST_BYTES = 16 << 10
"""What shows the rate of a connection; less fits into buffers at once."""


class LinkReport(NamedTuple):
    """By rank: the round trip in us, and bytes per second. NaN where there is no connection over TCP, as to a rank of
    the same host, and where too little was sent."""

    round_trip_us: list[float]
    bytes_per_second: list[float]


class _Counters(NamedTuple):
    acknowledged: int
    busy_us: int


class LinkMeter:
    """Watches the connections of a wire from call to call of `take`."""

    def __init__(self, wire: RankWire) -> None:
        self.wire = wire
        self.before = self._counters()

    def take(self) -> LinkReport:
        """What was seen since the last call."""
        now = self._counters()
        trips, rates = [], []
        for rank, counters in enumerate(now):
            connections = self._connections(rank)
            trips.append(max((_round_trip(each) for each in connections), default=nan))
            moved = [
                (new.acknowledged - old.acknowledged, new.busy_us - old.busy_us)
                for new, old in zip(counters, self.before[rank], strict=True)
            ]
            total, busy = sum(sent for sent, _ in moved), max((busy for _, busy in moved), default=0)
            rates.append(total / busy * 1e6 if total >= LEAST_BYTES and busy > 0 else nan)
        self.before = now
        return LinkReport(trips, rates)

    def _connections(self, rank: int) -> list[socket.socket]:
        streams = (self.wire.sockets, *self.wire.more)
        found = (stream[rank] for stream in streams)
        return [each for each in found if each is not None and each.family == socket.AF_INET]

    def _counters(self) -> list[list[_Counters]]:
        return [[_counters(each) for each in self._connections(rank)] for rank in range(len(self.wire.sockets))]


def _counters(connection: socket.socket) -> _Counters:
    info = _info(connection)
    if info is None:
        return _Counters(0, 0)
    acknowledged, busy, limited = COUNTERS.unpack_from(info)
    return _Counters(acknowledged, max(0, busy - limited))


def _round_trip(connection: socket.socket) -> float:
    info = _info(connection)
    return nan if info is None else float(ROUND_TRIP.unpack_from(info)[0])


def _info(connection: socket.socket) -> bytes | None:
    """The kernel's tcp_info; None where it has none of this length (before Linux 4.10)."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    return info if len(info) == TCP_INFO_BYTES else None
