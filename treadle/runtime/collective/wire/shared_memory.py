"""Memory that the ranks of one host share."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from mmap import mmap

from treadle.planner.errors import CheckFailed

SHARE_SECONDS = 60.0


def share(
    rank: int, sockets: Sequence[socket.socket | None], bytes_of: Callable[[int], int]
) -> tuple[mmap, list[int]] | None:
    """Zeroed memory that the ranks of this host share, `bytes_of` their number, and these ranks in order; None where
    this one is alone. All ranks call it."""
    near = sorted({rank} | {other for other, each in enumerate(sockets) if each and each.family == socket.AF_UNIX})
    if len(near) == 1:
        return None
    size = bytes_of(len(near))
    if rank == near[0]:
        file = os.memfd_create("treadle")
        try:
            os.ftruncate(file, size)
            for each in filter(None, (sockets[other] for other in near)):
                socket.send_fds(each, [b"m"], [file])
        except BaseException:
            os.close(file)
            raise
    else:
        first = sockets[near[0]]
        assert first is not None
        first.settimeout(SHARE_SECONDS)
        try:
            _, files, _, _ = socket.recv_fds(first, 1, 1)
        except TimeoutError:
            raise CheckFailed(f"rank {near[0]} did not share memory within {SHARE_SECONDS:g} s") from None
        first.settimeout(None)
        if not files:
            raise CheckFailed(f"rank {near[0]} ended")
        file = files[0]
    try:
        return mmap(file, size), near
    finally:
        os.close(file)
