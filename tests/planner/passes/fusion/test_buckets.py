"""Bucket tables against a list of every element, and their size for BERT."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.buckets import ENTRY_BYTES, bucket_table


def test_three_tensors():
    table = bucket_table([1500, 1024, 10])
    rows = list(zip(table.tensor.tolist(), table.offset.tolist(), table.length.tolist(), strict=True))
    assert rows == [(0, 0, 1024), (0, 1024, 476), (1, 0, 1024), (2, 0, 10)]


def test_size_of_the_table_of_bert():
    """334M elements: 326,172 buckets, 0.6 % of one f16 copy (CoCoNet, section 5.4)."""
    table = bucket_table([334_000_000])
    assert len(table) == 326_172
    assert round(ENTRY_BYTES * len(table) / (2 * 334e6), 5) == 0.00586


@given(st.lists(st.integers(0, 23), max_size=6), st.integers(1, 7))
def test_every_element_is_in_one_bucket(sizes, limit):
    table = bucket_table(sizes, limit)
    elements = [(tensor, place) for tensor, size in enumerate(sizes) for place in range(size)]
    rows = list(zip(table.tensor.tolist(), table.offset.tolist(), table.length.tolist(), strict=True))
    assert elements == [(tensor, offset + k) for tensor, offset, length in rows for k in range(length)]
    assert all(length == limit or offset + length == sizes[tensor] for tensor, offset, length in rows)
    for index, (tensor, place) in enumerate(elements):
        bucket = int(np.searchsorted(table.start, index, side="right")) - 1
        assert (rows[bucket][0], rows[bucket][1] + index - table.start[bucket]) == (tensor, place)


def test_no_negative_sizes():
    with pytest.raises(InputError, match="expected sizes from 0"):
        bucket_table([4, -1])
