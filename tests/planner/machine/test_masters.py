"""Masters of chunks: the published examples, and shares that no rounding spoils."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.planner.machine.masters import interleaved, proportional, shared_out

GROUPS = st.lists(st.integers(1, 5), min_size=1, max_size=4)
"""Sizes."""


def of_sizes(sizes: list[int]) -> list[list[int]]:
    hosts = iter(range(sum(sizes)))
    return [[next(hosts) for _ in range(size)] for size in sizes]


def test_two_groups_of_two_take_turns() -> None:
    found = shared_out([[0, 1], [2, 3]], 4)
    assert [each.local for each in found] == [(0, 2), (1, 3), (0, 2), (1, 3)]
    assert [each.top for each in found] == [0, 1, 2, 3]


def test_groups_get_global_masters_by_size_and_hosts_equal_numbers() -> None:
    found = shared_out([[0, 1, 2], [3, 4]], 10)
    assert Counter(each.top for each in found) == dict.fromkeys(range(5), 2)
    assert Counter(host for each in found for host in each.local) == {0: 4, 1: 3, 2: 3, 3: 5, 4: 5}


def test_things_are_never_more_than_allowed() -> None:
    assert proportional(4, [1, 1, 1], most=[0, 3, 3]) == [0, 2, 2]
    assert proportional(5, [0, 0]) == [3, 2]


@settings(max_examples=30, deadline=None)
@given(GROUPS, st.integers(1, 40), st.data())
def test_masters_are_shared_out_within_one_of_proportional(sizes: list[int], chunks: int, data: st.DataObject) -> None:
    groups = of_sizes(sizes)
    hosts = sum(sizes)
    weights = data.draw(st.none() | st.lists(st.integers(1, 50), min_size=hosts, max_size=hosts))
    found = shared_out(groups, chunks, weights)
    share = weights or [1] * hosts
    assert len(found) == chunks
    tops = Counter(each.top for each in found)
    locals_ = Counter(host for each in found for host in each.local)
    for number, group in enumerate(groups):
        whole = sum(share[host] for host in group)
        assert abs(sum(tops[host] for host in group) - chunks * whole / sum(share)) < 1
        assert all(each.local[number] in group and each.top in each.local for each in found)
        for host in group:
            assert abs(locals_[host] - chunks * share[host] / whole) < 1
            assert tops[host] <= locals_[host]
    assert Counter(interleaved(found, groups)) == Counter(found)


def test_neighbouring_chunks_have_their_global_masters_in_different_groups() -> None:
    groups = of_sizes([3, 3])
    tops = [each.top // 3 for each in interleaved(shared_out(groups, 12), groups)]
    assert tops == [0, 1] * 6
