"""The message slots of the public runtimes: their size, and how many a connection has.

Evidence: RCCL and msccl-executor-nccl, `mscclSetupCount`; microsoft/msccl counts alike. `NCCL_STEPS` is 8. Simple puts
a message into 4 of the 8 steps of a 4 MiB buffer, LL and LL128 into 1 of 8; slots are those of 256 threads, RCCL's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MessageSlots:
    """A connection has `slots` messages of at most `slot_bytes` of payload in flight; the wire carries `wire` bytes for
    each byte of payload (a flag for every 4 bytes in LL, 8 bytes of flag in every 128 in LL128)."""

    slots: int
    slot_bytes: int
    wire: float


PROTOCOLS = {
    "Simple": MessageSlots(slots=2, slot_bytes=2 << 20, wire=1.0),
    "LL": MessageSlots(slots=8, slot_bytes=16 << 10, wire=2.0),
    "LL128": MessageSlots(slots=8, slot_bytes=225 << 10, wire=16 / 15),
}

MAX_PIECE = 71
"""Chunks that a message carries at most (MSCCL_MAX_COUNT - 1)."""


def piece_chunks(chunk_bytes: int, slot_bytes: int) -> int:
    """The most chunks of one message: the runtimes cut a step of more chunks into several messages."""
    return min(MAX_PIECE, max(1, slot_bytes // max(1, chunk_bytes)))
