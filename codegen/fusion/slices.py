"""Slice maps as C++ types (templates/fusion/treadle_slices.h); their meaning stands in
treadle.planner.passes.fusion.slice_maps."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from treadle.planner.passes.fusion.layouts import FLAT, Layout, RingTile, Sliced


def slice_type(layout: Layout, extents: Sequence[int], ranks: int) -> str:
    """The C++ type that numbers the elements that one of `ranks` holds of a tensor with these global extents."""
    size = prod(extents)
    if not isinstance(layout, Sliced):
        return f"Whole<{size}>"
    if isinstance(layout.map, RingTile):
        tiles = layout.map
        order = "true" if tiles.rank_major else "false"
        return f"RingSlice<{size}, {tiles.channels}, {tiles.capacity}, {tiles.align}, {order}, {ranks}>"
    if layout.dim == FLAT:
        return f"BlockSlice<1, {size}, 1, {ranks}>"
    outer, inner = prod(extents[: layout.dim]), prod(extents[layout.dim + 1 :])
    return f"BlockSlice<{outer}, {extents[layout.dim]}, {inner}, {ranks}>"
