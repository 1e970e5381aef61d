"""Adjusted mutual information against all permutations."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from math import log
from statistics import mean

import pytest

from benchmarks.aggregation.agreement import adjusted_mutual_information

ONE, OTHER = [0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2]


def mutual(one: list[int], other: tuple[int, ...] | list[int]) -> float:
    n, rows, columns = len(one), Counter(one), Counter(other)
    return sum(
        count / n * log(n * count / (rows[a] * columns[b]))
        for (a, b), count in Counter(zip(one, other, strict=True)).items()
    )


def test_chance_is_the_mean_over_all_permutations() -> None:
    chance = mean(mutual(ONE, order) for order in permutations(OTHER))
    most = (mutual(ONE, ONE) + mutual(OTHER, OTHER)) / 2
    found = adjusted_mutual_information(ONE, OTHER)
    assert found == pytest.approx((mutual(ONE, OTHER) - chance) / (most - chance))
    assert found == pytest.approx(0.298792458)


def test_equal_divisions_agree_and_one_group_says_nothing() -> None:
    assert adjusted_mutual_information(ONE, [5, 5, 5, 2, 2, 2]) == pytest.approx(1)
    assert adjusted_mutual_information([0, 0, 0, 0], [0, 1, 2, 3]) == pytest.approx(0, abs=1e-9)
