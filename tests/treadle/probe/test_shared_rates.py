"""A full link is divided among the pairs that share it; chance of one measurement is not kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.probe.shared_rates import divided, shared_rates


@given(st.floats(0, 1e9), st.lists(st.floats(0, 1e9), min_size=1, max_size=8))
def test_nothing_is_lost_and_nobody_gets_too_much(total: float, most: list[float]) -> None:
    shares = divided(total, most)
    assert sum(shares) == pytest.approx(min(total, sum(most)), rel=1e-6, abs=1e-3)
    assert all(share <= cap for share, cap in zip(shares, most, strict=True))
    held = [share for share, cap in zip(shares, most, strict=True) if share < cap]
    assert not held or max(shares) == pytest.approx(max(held))


def test_a_slow_host_and_a_slow_pair_keep_their_own_rates() -> None:
    rounds = [((0, 2), (1, 3))]
    measured = {(0, 2): 5.0, (2, 0): 9.0, (1, 3): 15.0, (3, 1): 1.0}
    before = {(0, 1): 20.0, (2, 3): 20.0, (1, 3): 20.0, (3, 1): 1.5}
    groups = [[0, 1], [2, 3]]
    assert shared_rates(rounds, measured, before, groups) == {(0, 2): 10, (1, 3): 10, (2, 0): 8.5, (3, 1): 1.5}
    slow = {(0, 1): 20.0, (1, 0): 20.0, (2, 3): 6.0}
    assert shared_rates(rounds, {**measured, (3, 1): 4.0}, slow, groups)[1, 3] == 6
