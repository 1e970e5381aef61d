"""Rounds of a probe: their pairs are disjoint, and together they are all pairs, each once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.probe.schedule import Round, across, circle, inside, spread


def hosts_in(pairs: Round) -> list[int]:
    return list(chain.from_iterable(pairs))


def assert_disjoint(rounds: Sequence[Round]) -> None:
    for pairs in rounds:
        assert len(set(hosts_in(pairs))) == 2 * len(pairs)


@given(st.integers(1, 40), st.integers(0, 5))
def test_a_circle_has_every_pair_once_in_the_fewest_rounds(count: int, first: int) -> None:
    hosts = range(first, first + count)
    rounds = circle(hosts)
    assert_disjoint(rounds)
    assert len(rounds) == (0 if count == 1 else count - 1 if count % 2 == 0 else count)
    assert sorted(chain.from_iterable(rounds)) == list(combinations(hosts, 2))


def test_six_hosts_take_five_rounds_of_three_pairs() -> None:
    assert [len(pairs) for pairs in circle(range(6))] == [3] * 5


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_rounds_across_have_every_pair_of_two_groups_once(sizes: list[int]) -> None:
    groups = groups_of(sizes)
    rounds = across(groups)
    assert_disjoint(rounds)
    expected = [(a, b) for one, other in combinations(groups, 2) for a in one for b in other]
    assert sorted(chain.from_iterable(rounds)) == sorted(expected)


@pytest.mark.parametrize(("groups", "size"), [(2, 4), (2, 8), (4, 3), (6, 2)])
def test_across_equal_groups_every_host_sends_in_every_round(groups: int, size: int) -> None:
    rounds = across(groups_of([size] * groups))
    assert [len(set(hosts_in(pairs))) for pairs in rounds] == [groups * size] * ((groups - 1) * size)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_two_rounds_inside_join_every_group(sizes: list[int]) -> None:
    groups = groups_of(sizes)
    rounds = inside(groups, 2)
    assert_disjoint(rounds)
    part = {host: {host} for group in groups for host in group}
    for one, other in chain.from_iterable(rounds):
        part[one] |= part[other]
        for host in part[one]:
            part[host] = part[one]
    assert {frozenset(each) for each in part.values()} == {frozenset(group) for group in groups}


def test_chosen_rounds_are_spread_evenly() -> None:
    rounds = circle(range(32))
    assert spread(rounds, 31) == rounds
    assert spread(rounds, 3) == [rounds[0], rounds[10], rounds[20]]


def groups_of(sizes: list[int]) -> list[list[int]]:
    """Groups of these sizes, whose hosts are not numbered one after the other."""
    hosts = list(range(sum(sizes)))[::-1]
    return [[hosts.pop() for _ in range(size)] for size in sizes]
