"""Finds are handed on at once, then seldom, and never so late that the last one would be told beyond the end."""

from __future__ import annotations

from treadle.planner.search.telling import Teller


def test_finds_are_told_seldom_and_in_time():
    told: list[int] = []
    clock = [0.0]

    def tell(find: int) -> None:
        told.append(find)
        clock[0] += 2.0

    teller = Teller[int](tell, ends=100.0, now=lambda: clock[0])
    teller.offer(1)
    teller.offer(2)
    assert (told, teller.stops) == ([1], 97.0)
    clock[0] = 23.0
    teller.offer(3)
    assert told == [1, 3]
    clock[0] = 96.0
    teller.offer(4)
    assert told == [1, 3]


def test_a_guess_of_what_telling_takes_counts_until_one_was_told():
    clock = [0.0]

    def tell(find: int) -> None:
        clock[0] += 2.0

    teller = Teller[int](tell, ends=100.0, took_s=20.0, now=lambda: clock[0])
    assert teller.stops == 70.0
    clock[0] = 80.0
    teller.offer(1)
    assert (teller.told, teller.stops) == (True, 97.0)
