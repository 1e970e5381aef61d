"""Definition of each collective: chunk labels, where chunks start, and where they must end (TACCL, section 5.3).

Combining collectives are routed as their mirror image: a reducescatter is an allgather run backwards, a reduce is a
broadcast run backwards, an allreduce is both halves one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from treadle.planner.documents.collective import Collective, Demand
from treadle.planner.documents.hardware import InNetwork
from treadle.planner.passes.collective.algorithm import CollectiveDecisions

ROUTED_AS: dict[Collective, Collective] = {
    "allgather": "allgather",
    "alltoall": "alltoall",
    "alltoallv": "alltoallv",
    "broadcast": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "sendrecv",
    "custom": "custom",
    "reducescatter": "allgather",
    "allreduce": "allgather",
    "reduce": "broadcast",
}
INVERTED = frozenset({"reducescatter", "allreduce", "reduce"})
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
DEMANDING = frozenset({"alltoallv", "sendrecv", "custom"})
"""Collectives whose chunks are given one by one, as demands."""

IN_SWITCH: dict[Collective, tuple[InNetwork, ...]] = {
    "allgather": ("multicast",),
    "broadcast": ("multicast",),
    "reducescatter": ("reduce",),
    "reduce": ("reduce",),
    "allreduce": ("reduce", "multicast"),
}
"""What a switch does for a collective; all others send something else to each rank, which no switch can merge."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece as routing sees it: it starts at rank `owner` (and the ranks `also`) and must reach every rank of
    `targets`."""

    owner: int
    targets: frozenset[int]
    also: frozenset[int] = frozenset()

    @property
    def sources(self) -> frozenset[int]:
        return self.also | {self.owner}


@dataclass(frozen=True, slots=True)
class Form:
    """By chunk: the ranks that hold it, or their part of its sum, before the call, and those that hold it after.

    A rank's input is the chunks that it holds before, by id; its output those that it holds after, by id.
    """

    before: tuple[frozenset[int], ...]
    after: tuple[frozenset[int], ...]
    reducing: bool


def form(
    collective: Collective,
    ranks: int,
    chunkup: int,
    root: int = 0,
    roots: Sequence[int] | None = None,
    demands: Sequence[Demand] | None = None,
) -> Form:
    """Where the chunks of `collective` are before and after."""
    everyone = frozenset(range(ranks))
    alone = [frozenset({rank}) for rank in range(ranks)]
    pieces = range(chunkup)
    by_rank = tuple(alone[rank] for rank in range(ranks) for _ in pieces)
    match collective:
        case "allgather":
            return Form(by_rank, (everyone,) * len(by_rank), False)
        case "reducescatter":
            return Form((everyone,) * len(by_rank), by_rank, True)
        case "allreduce":
            count = len(by_rank) if roots is None else len(roots)
            return Form((everyone,) * count, (everyone,) * count, True)
        case "broadcast":
            return Form((alone[root],) * chunkup, (everyone,) * chunkup, False)
        case "reduce":
            return Form((everyone,) * chunkup, (alone[root],) * chunkup, True)
        case "gather":
            return Form(by_rank, (alone[root],) * len(by_rank), False)
        case "scatter":
            return Form((alone[root],) * len(by_rank), by_rank, False)
        case "alltoall":
            before = tuple(part for part in alone for _ in range(ranks * chunkup))
            return Form(before, by_rank * ranks, False)
        case "alltoallv" | "sendrecv" | "custom":
            given = [demand for demand in demands or () for _ in pieces]
            return Form(
                tuple(frozenset(demand.sources) for demand in given),
                tuple(frozenset(demand.targets) for demand in given),
                False,
            )
        case _:
            assert_never(collective)


def form_of(decisions: CollectiveDecisions) -> Form:
    """The form of the collective of `decisions`."""
    return form(
        decisions.collective,
        decisions.ranks,
        decisions.chunkup,
        decisions.root or 0,
        decisions.roots,
        decisions.demands,
    )


def positions(members: Sequence[frozenset[int]], ranks: int) -> list[list[int]]:
    """By rank: the chunks whose set contains it, by id. That is the layout of a buffer."""
    held: list[list[int]] = [[] for _ in range(ranks)]
    for chunk, group in enumerate(members):
        for rank in group:
            held[rank].append(chunk)
    return held


def pieces(
    collective: Collective,
    ranks: int,
    chunkup: int,
    roots: Sequence[int] | None = None,
    demands: Sequence[Demand] | None = None,
) -> int:
    """How many chunks the largest input buffer of a rank is cut into."""
    if collective in ("allgather", "broadcast", "reduce", "gather"):
        return chunkup
    if collective in DEMANDING:
        counts = [0] * ranks
        for demand in demands or ():
            for rank in demand.sources:
                counts[rank] += chunkup
        return max(1, *counts)
    return len(roots) if roots is not None else ranks * chunkup


def routed_chunks(
    collective: Collective,
    ranks: int,
    chunkup: int,
    root: int,
    roots: Sequence[int] | None = None,
    demands: Sequence[Demand] | None = None,
) -> tuple[Chunk, ...]:
    """The chunks by id, in the routed (not inverted) form of `collective`."""
    everyone = frozenset(range(ranks))
    if collective == "allreduce" and roots is not None:
        return tuple(Chunk(owner, everyone) for owner in roots)
    asked = form(ROUTED_AS[collective], ranks, chunkup, root, None, demands)
    return tuple(
        Chunk(min(before), after, before - {min(before)})
        for before, after in zip(asked.before, asked.after, strict=True)
    )


def permuted_chunks(collective: Collective, chunkup: int, perm: Sequence[int]) -> tuple[int, ...]:
    """Where a permutation of ranks takes each chunk id, through the labels: owner and target move, the piece stays."""
    ranks = len(perm)
    match ROUTED_AS[collective]:
        case "allgather" | "gather" | "scatter":
            return tuple(perm[owner] * chunkup + k for owner in range(ranks) for k in range(chunkup))
        case "broadcast":
            return tuple(range(chunkup))
        case _:
            return tuple(
                (perm[owner] * ranks + perm[target]) * chunkup + k
                for owner in range(ranks)
                for target in range(ranks)
                for k in range(chunkup)
            )
