"""Which elements of a sliced tensor each rank holds, and in which order (CoCoNet, section 5; docs/fusion.md).

A slice map is a bijection between (rank, local index) and the index into the flat, row-major tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.layouts import FLAT, Block, RingTile, Sliced, SliceMap


def global_indices(layout: Sliced, extents: Sequence[int], ranks: int, rank: int) -> NDArray[np.int64]:
    """Flat global indices of the elements that `rank` of `ranks` holds, in the order in which it holds them.

    `extents` are those of the global tensor. Along a dimension the order is row-major over the part.
    """
    size = prod(extents)
    if isinstance(layout.map, RingTile):
        return _ring_tile(layout.map, size, ranks, rank)
    if layout.dim == FLAT:
        return np.arange(*_part(size, ranks, rank), dtype=np.int64)
    whole = np.arange(size, dtype=np.int64).reshape(tuple(extents))
    first, end = _part(extents[layout.dim], ranks, rank)
    return np.take(whole, np.arange(first, end), axis=layout.dim).reshape(-1)


def capacity(layout: Sliced, extents: Sequence[int], ranks: int) -> int:
    """Elements to allocate at each rank: the most that any rank holds."""
    if isinstance(layout.map, RingTile):
        return max(global_indices(layout, extents, ranks, rank).size for rank in range(ranks))
    if layout.dim == FLAT:
        return -(-prod(extents) // ranks)
    others = prod(extent for number, extent in enumerate(extents) if number != layout.dim)
    return others * -(-extents[layout.dim] // ranks)


def local_shape(layout: Sliced, extents: Sequence[int], ranks: int, rank: int) -> tuple[int, ...]:
    """The shape of a rank's part: one dimension for flat maps."""
    if layout.dim == FLAT:
        return (global_indices(layout, extents, ranks, rank).size,)
    first, end = _part(extents[layout.dim], ranks, rank)
    return tuple(end - first if number == layout.dim else extent for number, extent in enumerate(extents))


def _part(extent: int, ranks: int, rank: int) -> tuple[int, int]:
    most = -(-extent // ranks)
    return min(extent, rank * most), min(extent, (rank + 1) * most)


def _ring_tile(tiles: RingTile, size: int, ranks: int, rank: int) -> NDArray[np.int64]:
    channels, align = tiles.channels, tiles.align
    step = ranks * channels * tiles.capacity
    pieces = []
    for base in range(0, size, step):
        chunk = -(-min(tiles.capacity, -(-(size - base) // (ranks * channels))) // align) * align
        for channel in range(channels):
            place = rank * channels + channel if tiles.rank_major else channel * ranks + rank
            first = base + place * chunk
            pieces.append(np.arange(first, max(first, min(first + chunk, size)), dtype=np.int64))
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def map_text(slice_map: SliceMap) -> str:
    """The map as an attribute of a node: `block` or `ring_tile(C,K,align[,rank_major])`."""
    if isinstance(slice_map, Block):
        return "block"
    order = ",rank_major" if slice_map.rank_major else ""
    return f"ring_tile({slice_map.channels},{slice_map.capacity},{slice_map.align}{order})"


_RING_TILE = re.compile(r"ring_tile\((\d+),(\d+),(\d+)(,rank_major)?\)")


def map_of(text: object) -> SliceMap:
    """The map of an attribute. Raises InputError."""
    if text == "block":
        return Block()
    found = _RING_TILE.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise InputError(f"found slice map {text!r}, expected block or ring_tile(C,K,align[,rank_major])")
    channels, size, align = (int(number) for number in found.groups()[:3])
    if min(channels, size, align) < 1 or size % align:
        raise InputError(f"found slice map {text}, expected whole numbers above 0, the capacity a multiple of align")
    return RingTile(channels, size, align, found[4] is not None)
