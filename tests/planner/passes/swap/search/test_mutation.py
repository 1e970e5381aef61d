"""Mutations stay valid, and change nothing with probability 0."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from treadle.planner.passes.swap.search.mutation import moved_classes, rebuilt_order, toggled_classes, varied_counts

# 1 -> 2 -> 3 -> 4 and 0 -> 4
STARTS = np.array([0, 1, 2, 3, 4, 4], np.int64)
SUCCESSORS = np.array([4, 2, 3, 4], np.int64)
ORDER = np.array([1, 0, 2, 3, 4], np.int64)


def test_without_probability_an_order_stays():
    draws = np.random.default_rng(0).random(10)
    assert list(rebuilt_order(ORDER, STARTS, SUCCESSORS, 0.0, draws)) == list(ORDER)


@pytest.mark.parametrize("probability", [0.5, 1.0])
def test_every_topological_order_is_reached_and_no_other(probability):
    rng = np.random.default_rng(1)
    found = Counter(
        tuple(rebuilt_order(ORDER, STARTS, SUCCESSORS, probability, rng.random(10)).tolist()) for _ in range(400)
    )
    assert set(found) == {(0, 1, 2, 3, 4), (1, 0, 2, 3, 4), (1, 2, 0, 3, 4), (1, 2, 3, 0, 4)}


def test_with_probability_one_the_first_ready_operator_is_drawn_fairly():
    rng = np.random.default_rng(2)
    first = Counter(int(rebuilt_order(ORDER, STARTS, SUCCESSORS, 1.0, rng.random(10))[0]) for _ in range(1000))
    assert 450 < first[0] < 550


def test_classes_stay_steps_of_at_most_one():
    rng = np.random.default_rng(3)
    classes = np.array([1, 1, 2, 3, 3], np.int64)
    assert list(toggled_classes(classes, 0.0, rng)) == list(classes)
    assert list(toggled_classes(classes, 1.0, rng)) == [1, 2, 2, 2, 3]
    for _ in range(100):
        classes = toggled_classes(classes, 0.3, rng)
        assert classes[0] == 1
        assert set(np.diff(classes)) <= {0, 1}
    assert list(toggled_classes(np.array([1], np.int64), 1.0, rng)) == [1]


def test_free_classes_are_numbered_without_gaps():
    rng = np.random.default_rng(4)
    classes = np.array([1, 1, 2, 3, 3], np.int64)
    assert list(moved_classes(classes, 0.0, rng)) == list(classes)
    seen = set()
    for _ in range(200):
        classes = moved_classes(classes, 0.3, rng)
        assert sorted(set(classes)) == list(range(1, classes.max() + 1))
        seen.add(bool((np.diff(classes) < 0).any()))
    assert seen == {True, False}


def test_counts_vary_around_themselves():
    rng = np.random.default_rng(5)
    counts = np.array([100] * 500 + [0] * 500, np.int64)
    assert list(varied_counts(counts, 0.0, rng)) == list(counts)
    drawn = varied_counts(counts, 1.0, rng)
    assert 95 < drawn[:500].mean() < 105
    assert 27 < drawn[:500].std() < 33
    assert drawn.min() == 0
    assert drawn[500:].max() <= 4
