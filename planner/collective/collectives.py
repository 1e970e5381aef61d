"""What each collective promises: chunk labels, where chunks start, where they must end (TACCL, section 5.3; spec 2.4).

Combining collectives are routed as their mirror image: a reducescatter is an allgather run backwards, a reduce is a
broadcast run backwards, an allreduce is both halves one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.collective.algorithm import Collective

ROUTED_AS: dict[Collective, Collective] = {
    "allgather": "allgather",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "reducescatter": "allgather",
    "allreduce": "allgather",
    "reduce": "broadcast",
}
INVERTED = frozenset({"reducescatter", "allreduce", "reduce"})
ROOTED = frozenset({"broadcast", "reduce"})


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece as routing sees it: it starts at rank `owner` and must reach every rank of `targets`."""

    owner: int
    targets: frozenset[int]


def pieces(collective: Collective, ranks: int, chunkup: int) -> int:
    """How many chunks one rank's input buffer is cut into."""
    return chunkup if collective in ("allgather", "broadcast", "reduce") else ranks * chunkup


def routed_chunks(collective: Collective, ranks: int, chunkup: int, root: int) -> tuple[Chunk, ...]:
    """The chunks by id, in the routed (not inverted) form of `collective`."""
    everyone = frozenset(range(ranks))
    form = ROUTED_AS[collective]
    if form == "allgather":
        return tuple(Chunk(owner, everyone) for owner in range(ranks) for _ in range(chunkup))
    if form == "broadcast":
        return tuple(Chunk(root, everyone) for _ in range(chunkup))
    return tuple(
        Chunk(owner, frozenset({target})) for owner in range(ranks) for target in range(ranks) for _ in range(chunkup)
    )


def permuted_chunks(collective: Collective, chunkup: int, perm: Sequence[int]) -> tuple[int, ...]:
    """Where a permutation of ranks takes each chunk id, through the labels: owner and target move, the piece stays."""
    ranks = len(perm)
    form = ROUTED_AS[collective]
    if form == "allgather":
        return tuple(perm[owner] * chunkup + k for owner in range(ranks) for k in range(chunkup))
    if form == "broadcast":
        return tuple(range(chunkup))
    return tuple(
        (perm[owner] * ranks + perm[target]) * chunkup + k
        for owner in range(ranks)
        for target in range(ranks)
        for k in range(chunkup)
    )
