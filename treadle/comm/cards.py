"""How much of a GPU the kernels of each job take at once, known to all jobs of a host.

Threadblocks of a program wait for those of its other ranks, so all of them must be resident. Two jobs that together
exceed a GPU can each hold the room that the other one needs, on one GPU each, and then both wait forever. A claim is a
bound abstract socket whose name says it: the kernel lists all of them, and removes those of a process that ends.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from pathlib import Path

from treadle.planner.errors import InputError
from treadle.runtime.sockets import LOCAL, close_in_forks

LISTED = Path("/proc/net/unix")


class CardClaim:
    """The part of the GPU `card` that this job takes: the largest of its programs, which run one after the other."""

    def __init__(self, card: str) -> None:
        self._card, self._taken = card, 0.0
        self._socket: socket.socket | None = None

    def extend(self, share: float) -> None:
        """Take at least `share` of the card, from 0 to 1. Raises InputError when other jobs leave less; then the claim
        stays as it was."""
        if share <= self._taken or not LOCAL:
            return
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        claim.bind(f"\0treadle-card {self._card} {os.getpid()} {round(share * 1000)} {secrets.token_hex(8)}")
        # Only once the own claim is listed: of two jobs that start together one sees the other.
        others = claims(self._card)
        if share + sum(others.values()) > 1:
            claim.close()
            taken = ", ".join(f"those of process {process} {part:.0%}" for process, part in sorted(others.items()))
            raise InputError(
                f"{self._card}: the kernels of this program take {share:.0%} of it at once and {taken}: jobs that do "
                "not fit together could wait for each other forever; give each job GPUs of its own, or plan with fewer "
                "--instances"
            )
        close_in_forks(claim)
        self.close()
        self._socket, self._taken = claim, share

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._taken = None, 0.0


def claims(card: str) -> dict[int, float]:
    """The share of the card that each other process takes."""
    found: dict[int, float] = {}
    listed = LISTED.read_text() if LISTED.is_file() else ""
    for process, share in re.findall(rf"@treadle-card {re.escape(card)} (\d+) (\d+) ", listed):
        if int(process) != os.getpid():
            found[int(process)] = max(found.get(int(process), 0.0), int(share) / 1000)
    return found
