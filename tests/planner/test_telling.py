"""Finds are handed on at once, then seldom, and never so late that the last one would be told beyond the end."""

from __future__ import annotations

import pytest

from planner import telling
from planner.telling import Teller


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(telling.time, "monotonic", lambda: now[0])
    return now


def test_finds_are_told_seldom_and_in_time(clock):
    told = []

    def tell(find: int) -> None:
        told.append(find)
        clock[0] += 2.0

    teller = Teller[int](tell, ends=100.0)
    teller.offer(1)
    teller.offer(2)
    assert (told, teller.stops) == ([1], 97.0)
    clock[0] = 23.0
    teller.offer(3)
    assert told == [1, 3]
    clock[0] = 96.0
    teller.offer(4)
    assert told == [1, 3]
