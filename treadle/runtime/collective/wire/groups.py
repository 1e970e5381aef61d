"""The wire of each process group, connected at the first use."""

from __future__ import annotations

import os
from socket import socket
from threading import Lock
from typing import Any

from torch import distributed

from treadle.runtime.agreement import agreed
from treadle.runtime.collective.wire.native import RankWire, library
from treadle.runtime.sockets import added_us, close, connect

_wires: list[tuple[Any, RankWire]] = []
_lock = Lock()


def wire_of(group: Any, streams: int = 1) -> RankWire:
    """The wire of a process group. The first call for a group is made by all of its ranks together, and says how many
    `streams` there are between two ranks of different hosts.

    Raises on all ranks alike: InputError for a latency that is no number, MissingBackendError where one rank has no
    compiler.
    """
    with _lock:
        for known in [known for known, _ in _wires if not stands(known)]:
            close_wire(known)
        return next((wire for known, wire in _wires if known is group), None) or _connected(group, streams)


def _connected(group: Any, streams: int) -> RankWire:
    rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)

    def gather(value: Any) -> list[Any]:
        values: list[Any] = [None] * ranks
        distributed.all_gather_object(values, value, group=group)
        return values

    latency = agreed(lambda: (library(), added_us())[1], group)
    sockets: list[list[socket | None]] = []
    try:
        sockets.extend(connect(rank, ranks, gather) for _ in range(streams))
        wire = RankWire(rank, sockets[0], latency, more=sockets[1:])
    except BaseException:
        for each in sockets:
            close(each)
        raise
    _wires.append((group, wire))
    return wire


def close_wire(group: Any) -> None:
    """Close the wire of a group, if it has one."""
    for each in tuple(_wires):
        if each[0] is group:
            each[1].close()
            _wires.remove(each)


def stop_wire(group: Any) -> None:
    """End the call that another thread may be in on the wire of a group."""
    for known, wire in tuple(_wires):
        if known is group:
            wire.stop()


def _leave_to_parent() -> None:
    """A forked process has no wires; locks may be held by threads that it does not have."""
    global _lock
    for _, wire in _wires:
        wire.stop()
        wire.lock = Lock()
    _wires.clear()
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def stands(group: Any) -> bool:
    """False once torch.distributed.destroy_process_group has ended the group."""
    try:
        distributed.get_process_group_ranks(group)
    except KeyError:
        return False
    return True
