"""The rank that ended is named, by all others."""

from __future__ import annotations

import socket
from itertools import combinations
from queue import Queue

import pytest

from treadle.runtime.watch import RankWatch

Watches = tuple[list[RankWatch], list[Queue[int]], dict[int, socket.socket]]


@pytest.fixture
def ranks() -> Watches:
    """Ranks 0 and 1 with what each of them is called with, and the sockets of rank 2, which does not watch."""
    sockets: list[dict[int, socket.socket]] = [{}, {}, {}]
    for one, other in combinations(range(3), 2):
        sockets[one][other], sockets[other][one] = socket.socketpair()
    lost: list[Queue[int]] = [Queue(), Queue()]
    return [RankWatch(sockets[rank], lost[rank].put) for rank in (0, 1)], lost, sockets[2]


def test_a_process_that_ends_is_named_by_all_others(ranks: Watches) -> None:
    watches, lost, victim = ranks
    for each in victim.values():
        each.close()
    assert [each.get(timeout=10) for each in lost] == [2, 2]
    assert watches[0].lost_within(10) == 2


def test_a_rank_that_ends_because_of_another_names_that_one(ranks: Watches) -> None:
    _, lost, victim = ranks
    victim[0].close()  # rank 1 has this from rank 0 only
    assert [each.get(timeout=10) for each in lost] == [2, 2]


def test_a_rank_that_closes_is_not_lost(ranks: Watches) -> None:
    watches, lost, victim = ranks
    watches[1].close()
    assert watches[0].lost_within(0.05) is None
    victim[0].close()
    assert lost[0].get(timeout=10) == 2
