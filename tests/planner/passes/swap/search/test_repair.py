"""Repair of classes and of memory: the example of SwapAdvisor, and by enumeration."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.passes.swap.search.repair import (
    averaged,
    extended,
    filled,
    object_bytes,
    renumbered,
    repaired_classes,
    repaired_memory,
)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def valid(classes: tuple[int, ...]) -> bool:
    return classes[0] == 1 and all(b - a in (0, 1) for a, b in pairwise(classes))


@pytest.mark.parametrize(
    ("given_", "expected"),
    [((1, 2, 1, 1), (1, 2, 2, 2)), ((1, 1, 3, 4), (1, 2, 3, 4)), ((1, 2, 3, 1, 1), (1, 2, 3, 3, 3))],
)
def test_published_repairs_of_classes(given_, expected):
    assert tuple(repaired_classes(ints(*given_))) == expected


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_repair_of_classes_is_the_least_increase(length):
    every = [c for c in product(range(1, length + 1), repeat=length) if valid(c)]
    for first, second in product(every, repeat=2):
        for cut in range(length + 1):
            joined = second[:cut] + first[cut:]
            fit = [c for c in every if all(a >= b for a, b in zip(c, joined, strict=True))]
            least = tuple(map(min, zip(*fit, strict=True)))
            assert tuple(repaired_classes(ints(*joined))) == least


def test_counts_are_averaged_over_new_classes():
    """O4: both children of the crossover."""
    assert list(extended(ints(1, 2, 2, 2), ints(8, 1))) == [8, 1, 1, 1]
    assert list(averaged(ints(8, 1, 4, 4), ints(1, 2, 2, 2))) == [8, 3]
    assert list(averaged(ints(4, 4, 1, 1), ints(1, 1, 2, 2))) == [4, 1]


@pytest.mark.parametrize(
    ("counts", "sizes", "memory", "expected"),
    [((8, 3), (1, 4), 12, (4, 2)), ((4, 1), (2, 4), 12, (4, 1)), ((10, 4, 2), (1, 2, 4), 20, (8, 3, 1))],
)
def test_published_repairs_of_memory(counts, sizes, memory, expected):
    floors = np.ones(len(counts), np.int64)
    assert tuple(repaired_memory(ints(*counts), ints(*sizes), floors, memory)) == expected


@given(st.data())
def test_repair_of_memory_fits_above_the_floors(data):
    number = data.draw(st.integers(1, 6))
    row = st.lists(st.integers(0, 40), min_size=number, max_size=number)
    counts, floors = ints(*data.draw(row)), ints(*data.draw(row))
    objects = np.cumsum(ints(*data.draw(row)) + 1)
    memory = data.draw(st.integers(0, 3000))
    fit = repaired_memory(counts, objects, floors, memory)
    if (floors * objects).sum() > memory:
        assert fit is None
        return
    assert fit is not None
    assert (fit * objects).sum() <= memory
    assert (fit >= floors).all()
    assert (fit <= np.maximum(counts, floors)).all()
    most = np.maximum(counts, fit)
    full = filled(fit, objects, most, memory)
    assert (full >= fit).all()
    assert (full * objects).sum() <= memory
    room = memory - (full * objects).sum()
    assert all(count == top or size > room for count, top, size in zip(full, most, objects, strict=True))


def test_objects_are_as_large_as_the_largest_size_of_their_class():
    assert list(object_bytes(ints(1, 1, 2, 3), ints(1, 2, 5, 9))) == [2, 5, 9]
    assert list(object_bytes(ints(1, 2, 1, 2), ints(1, 2, 5, 9))) == [5, 9]


def test_free_classes_are_numbered_by_their_first_size():
    assert list(renumbered(ints(4, 2, 4, 7, 2))) == [1, 2, 1, 3, 2]
