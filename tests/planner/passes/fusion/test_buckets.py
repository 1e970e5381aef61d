"""Bucket tables against a list of every element, and the source's size of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.buckets import bucket_table


def test_three_tensors():
    table = bucket_table([1500, 1024, 10])
    rows = list(zip(table.tensor.tolist(), table.offset.tolist(), table.length.tolist(), strict=True))
    assert rows == [(0, 0, 1024), (0, 1024, 476), (1, 0, 1024), (2, 0, 10)]
    assert table.entry_bytes == 48
    assert [list(table.of_warp(warp, 3)) for warp in range(3)] == [[0, 3], [1], [2]]
    assert table.bucket_of(1500) == 2 != 1500 // 1024


def test_size_of_the_table_of_bert():
    """334M elements: 326,172 buckets, 0.6 % of one f16 copy (CoCoNet, section 5.4)."""
    table = bucket_table([334_000_000])
    assert len(table) == 326_172
    assert round(table.entry_bytes / (2 * 334e6), 5) == 0.00586


@given(st.lists(st.integers(0, 23), max_size=6), st.integers(1, 7), st.integers(1, 5))
def test_every_element_is_in_one_bucket(sizes, limit, warps):
    table = bucket_table(sizes, limit)
    elements = [(tensor, place) for tensor, size in enumerate(sizes) for place in range(size)]
    rows = list(zip(table.tensor.tolist(), table.offset.tolist(), table.length.tolist(), strict=True))
    assert elements == [(tensor, offset + k) for tensor, offset, length in rows for k in range(length)]
    assert all(length == limit or offset + length == sizes[tensor] for tensor, offset, length in rows)
    for index, (tensor, place) in enumerate(elements):
        bucket = table.bucket_of(index)
        assert (rows[bucket][0], rows[bucket][1] + index - table.start[bucket]) == (tensor, place)
    assert sorted(b for warp in range(warps) for b in table.of_warp(warp, warps)) == list(range(len(rows)))


@pytest.mark.parametrize("index", [-1, 10])
def test_outside(index):
    with pytest.raises(InputError, match="expected one below 10"):
        bucket_table([4, 6]).bucket_of(index)


def test_no_negative_sizes():
    with pytest.raises(InputError, match="expected sizes from 0"):
        bucket_table([4, -1])
