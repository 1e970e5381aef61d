"""Layouts of tensors over ranks (CoCoNet, section 2.1; specified in docs/fusion.md).

Sliced tensors carry their slice map: a bijection between (rank, local index) and the global index. Two sliced operands
go together only when dimension and map agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

FLAT = -1
"""Sliced along no dimension in particular: the elements in row-major order are divided."""


@dataclass(frozen=True)
class Block:
    """Rank i holds the i-th of n equal contiguous parts; ceil(extent / n) at most, the last ones shorter or empty."""


@dataclass(frozen=True)
class RingTile:
    """What a ring with `channels` copies and buffer tiles of `capacity` elements per chunk leaves at each rank.

    Indices are those of the flat tensor. For base G = 0, nCK, 2nCK, ...: q = min(K, ceil((N - G) / (nC))) rounded up to
    `align`; rank r holds q elements from G + (c n + r) q for every channel c, or from G + (r C + c) q if `rank_major`.
    """

    channels: int
    capacity: int
    align: int = 1
    rank_major: bool = False


SliceMap = Block | RingTile


@dataclass(frozen=True)
class Replicated:
    """The same values on every rank of the group."""


@dataclass(frozen=True)
class Local:
    """The same shape on every rank of the group, with values of its own."""


@dataclass(frozen=True)
class Sliced:
    """Divided along dimension `dim` (FLAT: along the row-major order) by `map`."""

    dim: int = FLAT
    map: SliceMap = Block()


@dataclass(frozen=True)
class At:
    """On rank `rank` of the group alone."""

    rank: int


Layout = Replicated | Local | Sliced | At


@dataclass(frozen=True)
class Group:
    """WORLD, or a group of consecutive ranks: `offset` groups after the one that runs the program."""

    name: str = "WORLD"
    offset: int = 0

    def __add__(self, further: int) -> Group:
        return Group(self.name, self.offset + further)

    def __str__(self) -> str:
        return self.name + (f" + {self.offset}" if self.offset else "")


WORLD = Group()
GROUP = Group("GROUP")


def layout_text(layout: Layout) -> str:
    """The layout as programs write it."""
    match layout:
        case Sliced(at, slice_map):
            where = "FLAT" if at == FLAT else str(at)
        case At(rank):
            return f"At({rank})"
        case Replicated() | Local():
            return type(layout).__name__
        case _:
            assert_never(layout)
    if not isinstance(slice_map, RingTile):
        return f"Sliced({where})"
    order = ", rank_major=True" if slice_map.rank_major else ""
    return f"Sliced({where}, RingTile({slice_map.channels}, {slice_map.capacity}, {slice_map.align}{order}))"
