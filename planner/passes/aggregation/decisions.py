"""What the pass of aggregation decides: groups of hosts, and the masters of every chunk."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from treadle.planner.documents.scalars import Amount, Count, Decisions, Name, Positive, Rank, Record
from treadle.planner.passes.aggregation.problem import AggregationProblem

Levels = Literal[1, 2]
"""1: flat, every chunk goes straight to its master. 2: to the master of its group, and between these to one of them."""
Signed = Annotated[float, Meta(ge=-1e30, le=1e30)]


class ChunkMasters(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A chunk of `bytes`: `local[g]` adds it up in group g, and `top`, one of them, adds up their sums. It travels over
    stream number `connection` between any two hosts."""

    bytes: Positive
    local: tuple[Rank, ...]
    top: Rank
    connection: Count = 0


class Embedding(Record, frozen=True, kw_only=True):
    """Hosts as points: the distance of two to the power `alpha`, and the heights of both where there are any, is close
    to what was measured between them, relative to its mean; `loss` is the sum of squares of what is left."""

    points: tuple[tuple[Signed, ...], ...]
    heights: tuple[Amount, ...] = ()
    alpha: Amount
    loss: Amount


class AggregationRival(Record, frozen=True, kw_only=True):
    """What another scheme is predicted to take on these hosts."""

    name: Name
    time_ns: Count
    across_bytes: Count
    """Sent between the groups."""


class AggregationDecisions(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="aggregation"):
    """`groups` have every host of `problem` once, ascending; with one level there is one group of all. `chunks` follow
    one another in the buffer. Bytes are those of all messages between hosts."""

    problem: AggregationProblem
    levels: Levels
    groups: tuple[tuple[Rank, ...], ...]
    near: tuple[tuple[Rank, ...], ...]
    """The groups that were found, also where one level was chosen."""
    chunks: tuple[ChunkMasters, ...]
    embedding: Embedding | None = None
    """None for groups that were given."""
    total_bytes: Count
    across_bytes: Count
    """Those of them between the groups of `near`."""
    time_ns: Count
    rivals: tuple[AggregationRival, ...] = ()
