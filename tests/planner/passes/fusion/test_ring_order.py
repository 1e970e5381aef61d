"""The order in which rings take chunks, and the table of what other orders cost, with its formulas up to 16 ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.ring_order import checked, consumption, consumption_by_owner, finish, ring, steps


def test_four_ranks():
    assert consumption(ring(4)) == ((0, 3, 2, 1), (1, 0, 3, 2), (2, 1, 0, 3), (3, 2, 1, 0))
    assert consumption(ring(4, -1))[0] == (0, 1, 2, 3)
    assert consumption_by_owner(ring(4))[0] == (3, 2, 1, 0)


@pytest.mark.parametrize(("n", "table"), [(2, (3, 3, 4, 4)), (4, (7, 9, 10, 10)), (8, (15, 21, 22, 22))])
def test_table(n, table):
    assert times(n) == table


@pytest.mark.parametrize("n", range(2, 17))
def test_formulas(n):
    assert times(n) == (2 * n - 1, 3 * n - 3, 3 * n - 2, 3 * n - 2)


def times(n):
    """Matched, opposite, everyone from chunk 0, no overlap."""
    to_next = ring(n)
    return (
        finish(to_next, consumption(to_next)),
        finish(to_next, consumption(ring(n, -1))),
        finish(to_next, [range(n)] * n),
        finish(to_next, None),
    )


@given(st.permutations(range(7)))
def test_any_ring(order):
    """The order follows the ring whatever its ranks are called, and then it costs what the matched order costs."""
    following = tuple(order[(order.index(rank) + 1) % 7] for rank in range(7))
    assert finish(checked(following), consumption(following)) == 13
    for rank, taken in enumerate(consumption_by_owner(following)):
        assert taken[-1] == rank
        assert all(following[later] == sooner for sooner, later in pairwise(taken))
    for rank, taken in enumerate(consumption(following)):
        after = consumption(following)[following[rank]]
        assert after[1:] == taken[:-1], "a rank takes next what its predecessor took before"


@given(st.integers(2, 5), st.data())
def test_no_order_beats_the_matched_one(n, data):
    produced = [data.draw(st.permutations(range(n))) for _ in range(n)]
    assert 2 * n - 1 <= finish(ring(n), produced) <= finish(ring(n), None)


def test_channels():
    assert steps([ring(3), ring(3, -1)], 0) == (((0, 2), (1, 1)), ((0, 1), (1, 2)), ((0, 0), (1, 0)))


@pytest.mark.parametrize("following", [(), (0, 1), (1, 0, 2), (1, 2, 1), (1, 2, 3), (1, 1)])
def test_no_ring(following):
    with pytest.raises(InputError, match="expected a ring"):
        checked(following)
