"""The words of collectives that documents share: their names, protocols, and the demands of irregular ones."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle.planner.documents.scalars import Rank

Collective = Literal[
    "allgather",
    "reducescatter",
    "allreduce",
    "alltoall",
    "alltoallv",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "sendrecv",
    "custom",
]

Protocol = Literal["Simple", "LL", "LL128"]
"""How a GPU carries messages: with fences, or with flags next to the data."""


MAX_PLACES = 2**20
"""(chunk, rank) pairs that a checker can follow one by one; 1024 ranks with one piece each come to that."""


def max_chunkup(collective: Collective, ranks: int) -> int:
    """The most pieces of a part whose chunks can be followed over all ranks."""
    return MAX_PLACES // (ranks if collective in ("broadcast", "reduce", "sendrecv", "custom") else ranks * ranks)


class Demand(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One part of an irregular collective: ranks that hold it before, and ranks that must hold it after."""

    sources: tuple[Rank, ...]
    targets: tuple[Rank, ...]
