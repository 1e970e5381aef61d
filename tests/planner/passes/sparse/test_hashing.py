"""The hash functions are MurmurHash3, and deal any indices out evenly."""

from __future__ import annotations

import numpy as np

from treadle.planner.passes.sparse.hashing import murmur3, ranged


def test_known_values() -> None:
    found = murmur3(np.array([0, 0xFFFFFFFF], dtype=np.uint32), 0)
    assert [hex(each) for each in found] == ["0x2362f9de", "0x76293b50"]


def test_parts_of_skewed_indices_are_even() -> None:
    # All in the first sixteenth of the range: even ranges have an imbalance of 16.
    parts = ranged(np.arange(100_000), 7, 16)
    imbalance = np.bincount(parts, minlength=16).max() * 16 / 100_000
    assert 1 <= imbalance < 1.05
