"""A full link is divided among the pairs that share it; chance of one measurement is not kept."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.probe.schedule import across
from treadle.probe.shared_rates import divided, shared_rates, slow_pairs


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
    assert slow_pairs(rounds, measured, before, groups) == [(3, 1)]
    assert shared_rates(rounds, measured, {**before, (3, 1): 20.0}, groups)[3, 1] == 5, "alone it was as fast as others"
    slow = {(0, 1): 20.0, (1, 0): 20.0, (2, 3): 6.0}
    assert shared_rates(rounds, {**measured, (3, 1): 4.0}, slow, groups)[1, 3] == 6


def test_streams_of_a_round_divide_the_uplinks_of_four_racks() -> None:
    """An uplink carries 80 and a NIC 100, so that four streams get 20 each, however they fared in a round."""
    groups = [range(first, first + 4) for first in range(0, 16, 4)]
    rounds = across(groups)
    chance = [5.0, 15.0, 25.0, 35.0]
    measured = {}
    for pairs in rounds:
        for src, dst in ((a, b) for pair in pairs for a, b in (pair, pair[::-1])):
            measured[src, dst] = chance[src % 4]
        for group in groups:
            assert sum(measured[src, dst] for pair in pairs for src, dst in (pair, pair[::-1]) if src in group) == 80
    before = {(src, dst): 100.0 if src // 4 == dst // 4 else 18.0 for src, dst in permutations(range(16), 2)}
    assert set(shared_rates(rounds, measured, before, groups).values()) == {20.0}
