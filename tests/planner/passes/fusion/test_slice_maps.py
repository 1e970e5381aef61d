"""Slice maps: bijections between (rank, local index) and the global index, by hand and for all sizes."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.layouts import FLAT, Block, RingTile, Sliced
from treadle.planner.passes.fusion.slice_maps import capacity, global_indices, local_shape, map_of, map_text


def indices(layout, extents, ranks, rank):
    return global_indices(layout, extents, ranks, rank).tolist()


def test_ring_tiles_by_hand():
    """Spec, section 7.6."""
    tiles = Sliced(FLAT, RingTile(2, 2))
    assert indices(tiles, (16,), 2, 0) == [0, 1, 4, 5, 8, 9, 12, 13]
    assert indices(tiles, (16,), 2, 1) == [2, 3, 6, 7, 10, 11, 14, 15]
    assert indices(tiles, (4, 4), 2, 1) == [2, 3, 6, 7, 10, 11, 14, 15]
    by_rank = Sliced(FLAT, RingTile(2, 2, rank_major=True))
    assert indices(by_rank, (16,), 2, 0) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert indices(by_rank, (16,), 2, 1) == [4, 5, 6, 7, 12, 13, 14, 15]
    assert indices(Sliced(FLAT), (16,), 2, 0) == list(range(8))


def test_tails_of_ring_tiles_by_hand():
    tiles = Sliced(FLAT, RingTile(2, 2))
    assert len(indices(tiles, (14,), 2, 0)) == 8
    assert indices(tiles, (14,), 2, 1) == [2, 3, 6, 7, 10, 11]
    assert capacity(tiles, (14,), 2) == 8
    # The last tile is shared out anew: 6 elements over 4 chunks, 2 each.
    assert indices(Sliced(FLAT, RingTile(2, 4)), (22,), 2, 1) == [4, 5, 6, 7, 12, 13, 14, 15, 18, 19]
    # Aligned to 4 the first chunk of the tail takes 4 of its 6 elements.
    assert indices(Sliced(FLAT, RingTile(2, 4, 4)), (22,), 2, 1) == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21]


def test_blocks_by_hand():
    assert indices(Sliced(0), (3, 2), 2, 0) == [0, 1, 2, 3]
    assert indices(Sliced(0), (3, 2), 2, 1) == [4, 5]
    assert indices(Sliced(1), (2, 4), 2, 1) == [2, 3, 6, 7]
    assert indices(Sliced(0), (1, 4), 3, 2) == []
    assert indices(Sliced(FLAT), (2, 3), 4, 3) == []
    assert local_shape(Sliced(1), (2, 5), 2, 1) == (2, 2)
    assert local_shape(Sliced(FLAT), (2, 5), 4, 3) == (1,)


def test_flat_blocks_are_rows_only_where_all_before_is_one():
    """Spec, section 3.1: a plain ReduceScatter of a row-major tensor."""
    assert indices(Sliced(1), (1, 4, 3), 2, 1) == indices(Sliced(FLAT), (1, 4, 3), 2, 1)
    assert indices(Sliced(1), (2, 4, 3), 2, 1) != indices(Sliced(FLAT), (2, 4, 3), 2, 1)


MAPS = st.one_of(
    st.just(Block()),
    st.builds(
        lambda channels, groups, align, rank_major: RingTile(channels, groups * align, align, rank_major),
        *(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.booleans()),
    ),
)
EXTENTS = st.lists(st.integers(1, 7), min_size=1, max_size=3)


@given(MAPS, EXTENTS, st.integers(1, 6), st.data())
def test_bijection(slices, extents, ranks, data):
    at = FLAT if isinstance(slices, RingTile) else data.draw(st.integers(FLAT, len(extents) - 1))
    layout = Sliced(at, slices)
    parts = [global_indices(layout, extents, ranks, rank) for rank in range(ranks)]
    assert sorted(np.concatenate(parts)) == list(range(prod(extents)))
    assert capacity(layout, extents, ranks) == max(part.size for part in parts)
    for rank, part in enumerate(parts):
        assert part.size == prod(local_shape(layout, extents, ranks, rank))
        assert (np.diff(part) > 0).all()


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 4), st.integers(1, 300), st.booleans())
def test_ring_tiles_are_the_formula(channels, capacity_, ranks, size, rank_major):
    """Spec, section 5.4, element by element for aligned sizes: local(r, c, i, G) = G / n + c q + i."""
    tiles = RingTile(channels, capacity_, 1, rank_major)
    for rank in range(ranks):
        expected = {}
        for base in range(0, size, ranks * channels * capacity_):
            q = min(capacity_, -(-(size - base) // (ranks * channels)))
            for channel in range(channels):
                place = rank * channels + channel if rank_major else channel * ranks + rank
                for i in range(q):
                    if base + place * q + i < size:
                        expected[base // ranks + channel * q + i] = base + place * q + i
        assert indices(Sliced(FLAT, tiles), (size,), ranks, rank) == [expected[local] for local in sorted(expected)]


@given(MAPS)
def test_text_of_maps(slices):
    assert map_of(map_text(slices)) == slices


@pytest.mark.parametrize("text", ["ring", "ring_tile(2)", "ring_tile(0,2,1)", "ring_tile(2,3,2)", None, 3])
def test_texts_that_are_no_map(text):
    with pytest.raises(InputError, match="found slice map"):
        map_of(text)
