"""Incumbents are published at once, then seldom, and never so late that the final one would end after the limit."""

from __future__ import annotations

from treadle.planner.search.incumbent import Incumbent


def test_incumbents_are_published_seldom_and_in_time():
    published: list[int] = []
    clock = [0.0]

    def publish(solution: int) -> None:
        published.append(solution)
        clock[0] += 2.0

    incumbent = Incumbent[int](publish, ends=100.0, now=lambda: clock[0])
    incumbent.offer(1)
    incumbent.offer(2)
    assert (published, incumbent.search_ends) == ([1], 97.0)
    clock[0] = 23.0
    incumbent.offer(3)
    assert published == [1, 3]
    clock[0] = 96.0
    incumbent.offer(4)
    assert published == [1, 3]


def test_a_guess_of_the_cost_counts_until_one_is_published():
    clock = [0.0]

    def publish(solution: int) -> None:
        clock[0] += 2.0

    incumbent = Incumbent[int](publish, ends=100.0, cost_s=20.0, now=lambda: clock[0])
    assert incumbent.search_ends == 70.0
    clock[0] = 80.0
    incumbent.offer(1)
    assert (incumbent.published, incumbent.search_ends) == (True, 97.0)
