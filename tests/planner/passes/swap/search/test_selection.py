"""Selection by softmax (SwapAdvisor, section 4.4), without replacement."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from treadle.planner.passes.swap.search.selection import survivors, weights


def probabilities(times, best, temperature):
    exponentials = np.exp(weights(times, best, temperature))
    return exponentials / exponentials.sum()


def test_published_probabilities():
    """O5: times 1.0, 1.2, 1.5."""
    assert probabilities([10, 12, 15], 10, 1.0) == pytest.approx([0.4123, 0.3376, 0.2501], abs=5e-5)
    sharp = probabilities([10, 12, 15, None], 10, 0.1)
    assert sharp[0] / sharp[1] == pytest.approx(np.exp(2))
    assert sharp[3] == 0


def test_survivors_are_drawn_in_proportion():
    rng = np.random.default_rng(0)
    drawn = Counter(survivors([10, 12, 15], 10, 1, 1.0, rng)[0] for _ in range(4000))
    for at, share in enumerate((0.4123, 0.3376, 0.2501)):
        assert drawn[at] / 4000 == pytest.approx(share, abs=0.03)


def test_pairs_are_drawn_without_replacement():
    """P(first and second of the pair) = p_a p_b / (1 - p_a) + p_b p_a / (1 - p_b)."""
    rng = np.random.default_rng(1)
    drawn = Counter(tuple(survivors([10, 12, 15], 10, 2, 1.0, rng)) for _ in range(4000))
    p = probabilities([10, 12, 15], 10, 1.0)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert drawn[a, b] / 4000 == pytest.approx(p[a] * p[b] * (1 / (1 - p[a]) + 1 / (1 - p[b])), abs=0.03)


def test_infeasible_ones_survive_only_where_others_are_short():
    rng = np.random.default_rng(2)
    for _ in range(20):
        assert survivors([None, 10, None, 20], 10, 2, 0.1, rng) == [1, 3]
        assert {1, 3} < set(survivors([None, 10, None, 20], 10, 3, 0.1, rng))
