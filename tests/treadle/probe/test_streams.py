"""Streams between two ends of this process: what is counted is what was sent, and no stranger is counted."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from treadle.probe import streams
from treadle.probe.streams import CONNECT_SECONDS, connected, latency_us, listen, rates

NONCE = bytes(range(16))


def test_streams_are_counted_and_foreign_connections_are_not() -> None:
    ends = [listen("127.0.0.1", NONCE) for _ in range(2)]
    addresses = {rank: end.address for rank, end in enumerate(ends)}
    pairs = {0: (0, 1), 1: (1, 0)}
    socket.create_connection(ends[0].address).close()
    with socket.create_connection(ends[1].address) as foreign, ThreadPoolExecutor() as pool:
        foreign.sendall(b"GET / HTTP/1.1\r\nHost: treadle\r\n\r\n")
        opened = [job.result() for job in [pool.submit(connected, ends[r], r, pairs, addresses) for r in (0, 1)]]
        found = [job.result() for job in [pool.submit(rates, *each, is_alone=False) for each in opened]]
        assert [list(each) for each in found] == [[1], [0]]
        assert min(found[0][1], found[1][0]) > 1e6
        (out, _), (_, back) = [
            job.result() for job in [pool.submit(connected, ends[r], r, {0: (0, 1)}, addresses) for r in (0, 1)]
        ]
        times = [pool.submit(latency_us, out[0], starts=True), pool.submit(latency_us, back[0], starts=False)]
        assert 0 < times[0].result() < 1e5
        times[1].result()
        for stream in (out[0], back[0]):
            stream.close()
    for end in ends:
        end.server.close()


def test_a_sender_ends_also_when_nothing_reads_what_it_sends() -> None:
    end = listen("127.0.0.1", NONCE)
    with ThreadPoolExecutor() as pool:
        accepting = pool.submit(connected, end, 1, {0: (0, 1)}, {})
        outgoing, _ = connected(end, 0, {0: (0, 1)}, {1: end.address})
        _, unread = accepting.result()
        assert pool.submit(rates, outgoing, {}, is_alone=True).result(CONNECT_SECONDS / 2) == {}
    unread[0].close()
    end.server.close()


class HangsUp:
    """Gives 1000 bytes twice, then a reset."""

    left = 2

    def recv_into(self, part: bytearray) -> int:
        time.sleep(0.01)
        self.left -= 1
        if self.left < 0:
            raise ConnectionResetError
        return 1000


def test_a_sender_that_hangs_up_early_is_counted_up_to_then() -> None:
    """Over an hour the rate would be next to nothing."""
    begin = time.perf_counter()
    assert streams._count(HangsUp(), begin, begin + 3600, is_alone=False) > 100  # type: ignore[arg-type]


class Backlog:
    """1000 bytes a second in parts of 10, of which this side finds those of half a second when it begins."""

    def __init__(self) -> None:
        self.now, self.read = 0.5, 0

    def recv_into(self, part: bytearray) -> int:
        if not self.left():
            self.now += 0.01
        size = min(len(part), self.left(), 10)
        self.read += size
        return size

    def left(self) -> int:
        return round(1000 * self.now) - self.read


def test_what_had_already_arrived_makes_no_stream_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Backlog()
    monkeypatch.setattr(streams, "_waiting_bytes", lambda stream: stream.left())
    monkeypatch.setattr(streams.time, "perf_counter", lambda: late.now)
    assert streams._count(cast("socket.socket", late), 0.5, 1.0, True) == pytest.approx(1000)
