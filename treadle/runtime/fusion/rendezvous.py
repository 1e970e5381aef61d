"""Processes of one host that exchange small values through the one of rank 0."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Listener
from typing import Any

from treadle.planner.errors import CheckFailed, LimitError

PATIENCE_SECONDS = 60.0
RETRY_SECONDS = 0.005
GRACE_SECONDS = 2.0
"""Delay before a rank reports the loss of another one, so that the first failure is reported as the cause."""


@dataclass(frozen=True)
class RendezvousAddress:
    """An abstract socket, and a key that only the ranks know."""

    address: str = field(default_factory=lambda: f"\0treadle-{secrets.token_hex(16)}")
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))


class Rendezvous:
    """This process is `rank` of `world`. Raises LimitError when rank 0 does not start."""

    def __init__(self, place: RendezvousAddress, rank: int, world: int) -> None:
        self._rank = rank
        self._others: dict[int, Any] = {}
        if rank == 0:
            with Listener(place.address, "AF_UNIX", backlog=world, authkey=place.key) as listener:
                while len(self._others) < world - 1:
                    connection = listener.accept()
                    self._others[connection.recv()] = connection
        else:
            self._others[0] = _connected(place)
            self._others[0].send(rank)

    def exchange(self, value: Any = None) -> list[Any]:
        """The values of all ranks, once all have sent theirs. Raises CheckFailed when one has ended."""
        with _losses_reported():
            if self._rank:
                self._others[0].send(value)
                return list(self._others[0].recv())
            values = [value, *(self._others[rank].recv() for rank in sorted(self._others))]
            for rank in sorted(self._others):
                self._others[rank].send(values)
            return values

    def close(self) -> None:
        for connection in self._others.values():
            connection.close()


@contextmanager
def _losses_reported() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):
        time.sleep(GRACE_SECONDS)
        raise CheckFailed("another rank has ended before it was done") from None


def _connected(place: RendezvousAddress) -> Any:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        with suppress(ConnectionRefusedError):
            return Client(place.address, "AF_UNIX", authkey=place.key)
        time.sleep(RETRY_SECONDS)
    raise LimitError(f"rank 0 did not start within {PATIENCE_SECONDS:g} s")
