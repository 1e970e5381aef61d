"""Calls in turns: each once a round, none always after the same one, the first round not counted."""

from __future__ import annotations

import pytest

from treadle.runtime import turns
from treadle.runtime.turns import in_turns, slowest


def test_every_call_has_its_turn_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import distributed

    order: list[str] = []
    monkeypatch.setattr(distributed, "barrier", lambda: order.append("|"))
    monkeypatch.setattr(turns, "is_over", lambda ends: False)
    times = in_turns([lambda: order.append("a"), lambda: order.append("b"), lambda: order.append("c")], rounds=2)
    assert "".join(order) == "|a|b|c|b|c|a|c|a|b"
    assert [len(each) for each in times] == [2, 2, 2]


def test_the_slowest_rank_of_a_round_counts_and_the_median_over_rounds() -> None:
    first = [[10, 20, 90], [1, 1, 1]]
    second = [[30, 10, 10], [2, 1, 3]]
    assert slowest([first, second]) == {0: (30, ""), 1: (2, "")}


def test_once_the_time_is_over_no_round_after_the_first_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import distributed

    monkeypatch.setattr(distributed, "barrier", lambda: None)
    monkeypatch.setattr(turns, "is_over", lambda ends: ends < 1)
    calls = [lambda: None, lambda: None]
    assert [len(each) for each in in_turns(calls, 0)] == [1, 1]
    assert [len(each) for each in in_turns(calls, 2, rounds=3)] == [3, 3]
