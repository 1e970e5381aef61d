"""Only ranks of the job connect, over the interface that was named."""

from __future__ import annotations

import socket
import threading
from socket import AF_INET, AF_UNIX
from typing import Any

import pytest

from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime import sockets
from treadle.runtime.sockets import GREETING, MAGIC, connect, interface_address


class Meeting:
    """What all ranks of a job give, for threads."""

    def __init__(self, ranks: int) -> None:
        self.values: list[Any] = [None] * ranks
        self.barrier = threading.Barrier(ranks, timeout=10)

    def gather(self, rank: int, value: Any) -> list[Any]:
        self.values[rank] = value
        self.barrier.wait()
        return self.values


def connect_all(
    ranks: int, meeting: Meeting, addresses: tuple[str | None, ...] = (None,) * 4
) -> list[list[socket.socket | None]]:
    found: list[Any] = [None] * ranks
    errors: list[Exception] = []

    def run(rank: int) -> None:
        try:
            found[rank] = connect(rank, ranks, lambda value: meeting.gather(rank, value), addresses[rank])
        except (CheckFailed, InputError) as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    if errors:
        raise errors[0]
    return found


@pytest.mark.parametrize("local", [True, False])
def test_every_pair_has_a_stream(local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "LOCAL", local)
    found = connect_all(4, Meeting(4))
    for one in range(4):
        assert found[one][one] is None
        for other in range(one):
            here, there = found[one][other], found[other][one]
            assert here is not None
            assert there is not None
            assert here.family == (socket.AF_UNIX if local else socket.AF_INET)
            here.sendall(bytes([one, other]))
            assert there.recv(2) == bytes([one, other])
    for row in found:
        for each in row:
            if each is not None:
                each.close()


def test_ranks_at_different_addresses_are_on_different_hosts() -> None:
    addresses = ("127.0.0.1", "127.0.0.2", "127.0.0.1")
    found = connect_all(3, Meeting(3), addresses)
    families = [[each and each.family for each in row] for row in found]
    assert families == [[None, AF_INET, AF_UNIX], [AF_INET, None, AF_INET], [AF_UNIX, AF_INET, None]]
    for row in found:
        for each in row:
            if each is not None:
                each.close()


def test_strangers_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """They connect first: one says nothing and goes, one claims to be rank 1 without the secret, one is no rank."""
    monkeypatch.setattr(sockets, "LOCAL", False)

    class Visited(Meeting):
        def gather(self, rank: int, value: Any) -> list[Any]:
            values = super().gather(rank, value)
            if rank == 1:
                address, port, _, secret = values[0]
                socket.create_connection((address, port)).close()
                for greeting in (
                    GREETING.pack(MAGIC, 1, b"\0" * 32),
                    GREETING.pack(MAGIC, 7, secret),
                    GREETING.pack(b"http", 1, secret),
                ):
                    with socket.create_connection((address, port)) as stranger:
                        stranger.sendall(greeting)
            return values

    found = connect_all(2, Visited(2))
    here, there = found[0][1], found[1][0]
    assert here is not None
    assert there is not None
    there.sendall(b"rank 1")
    assert here.recv(10) == b"rank 1"


def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "JOIN_SECONDS", 0.2)
    with pytest.raises(CheckFailed, match=r"rank 1, 2 did not connect within 0\.2 s"):
        connect(0, 3, lambda value: [value, ("127.0.0.1", 1, "nobody", b""), ("127.0.0.1", 1, "nobody", b"")])


def test_a_rank_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "JOIN_SECONDS", 0.2)
    with pytest.raises(CheckFailed, match=r"rank 0 at 127\.0\.0\.9 cannot be reached: Connection refused"):
        connect(1, 2, lambda value: [("127.0.0.9", 1, "nobody", b"\0" * 32), value])


def test_an_interface_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth\x1b[31m77")
    with pytest.raises(InputError, match=r"GLOO_SOCKET_IFNAME: found no interface 'eth\\x1b\[31m77'"):
        interface_address()


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "1e9"])
def test_a_latency_that_is_no_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sockets.LATENCY, text)
    with pytest.raises(InputError, match="expected microseconds from 0 to 1000000"):
        sockets.added_us()
