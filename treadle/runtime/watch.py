"""Which rank ended: each rank has a socket to every other one, which closes with its process.

A collective of gloo that fails names an address, and only on the ranks that were connected for it.
"""

from __future__ import annotations

import selectors
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

from torch import distributed

from treadle.planner.errors import CheckFailed, TreadleError
from treadle.runtime.sockets import connect

NAMING_SECONDS = 3.0
"""How long a failed collective waits for the name of the rank that ended."""
MESSAGE = struct.Struct("!i")
GOODBYE = -1
"""In place of the rank that ended: the sender closes, and has seen none."""


class RankWatch:
    """Calls `on_lost` with the first rank that ended without `close`, on a thread of its own. `sockets` lead to the
    other ranks, by rank."""

    def __init__(self, sockets: Mapping[int, socket.socket], on_lost: Callable[[int], None]) -> None:
        self.sockets, self.on_lost = sockets, on_lost
        self.lost: int | None = None
        self.noticed = Event()
        self.closed = False
        Thread(target=self._watch, name="treadle-watch", daemon=True).start()

    def lost_within(self, seconds: float) -> int | None:
        """The rank that ended, or None after `seconds`."""
        self.noticed.wait(seconds)
        return self.lost

    @contextmanager
    def named(self) -> Iterator[None]:
        """An error of torch.distributed inside becomes CheckFailed with the rank that ended, if one did."""
        try:
            yield
        except RuntimeError as error:
            lost = None if isinstance(error, TreadleError) else self.lost_within(NAMING_SECONDS)
            if lost is None:
                raise
            raise lost_rank(lost) from error

    def close(self) -> None:
        """Let the other ranks know that this one goes on without them, and that another one ended if one did."""
        if self.closed:
            return
        self.closed = True
        self._say(GOODBYE if self.lost is None else self.lost)
        for each in self.sockets.values():
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _say(self, number: int) -> None:
        for each in self.sockets.values():
            with suppress(OSError):
                each.sendall(MESSAGE.pack(number))

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for other, each in self.sockets.items():
                selector.register(each, selectors.EVENT_READ, other)
            while selector.get_map() and self.lost is None:
                for key, _ in selector.select():
                    found = _received(self.sockets[key.data], key.data)
                    if self.closed:
                        return
                    if found == GOODBYE:
                        selector.unregister(key.fileobj)
                    elif self.lost is None:
                        self.lost = found
        if self.lost is not None:
            self._say(self.lost)  # before this rank ends as well
            self.noticed.set()
            self.on_lost(self.lost)


def watch_of(group: Any, on_lost: Callable[[int], None]) -> RankWatch:
    """The watch of a rank of `group`, whose ranks all call it. Raises CheckFailed where a rank cannot be reached."""
    rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)

    def gather(value: Any) -> list[Any]:
        values: list[Any] = [None] * ranks
        distributed.all_gather_object(values, value, group=group)
        return values

    sockets = connect(rank, ranks, gather)
    return RankWatch({other: each for other, each in enumerate(sockets) if each is not None}, on_lost)


def lost_rank(rank: int) -> CheckFailed:
    return CheckFailed(f"rank {rank} ended; gradients cannot be exchanged without it")


def _received(peer: socket.socket, other: int) -> int:
    """The rank that ended according to rank `other`, which is that rank where it says nothing."""
    with suppress(OSError):
        data = peer.recv(MESSAGE.size, socket.MSG_WAITALL)
        if len(data) == MESSAGE.size:
            return int(MESSAGE.unpack(data)[0])
    return other
