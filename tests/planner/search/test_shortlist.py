"""The best of several rankings, measured by one call: as many as asked for, and none that does not run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from treadle.planner.errors import InputError
from treadle.planner.search.shortlist import Shortlist, Trials, measured_in_turns
from treadle.planner.search.top import Predicted

MEASURED = (5, 6, 4, 9, 3, 2, 8, 1, 7, 5.5, 20, 30)
"""Of twelve choices, numbered from 1 on, that are predicted to take less the higher their number is: a speed, so that
the most is the best."""


def shortlist(what: str = "leaves", excluded: Sequence[int] = ()) -> Shortlist[int]:
    predicted = [Predicted(str(number), number) for number in range(1, 13)]
    return Shortlist(what, predicted, range(12), lambda place: "it is too large" if place + 1 in excluded else "")


class Machine:
    """Measures by the list, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[list[int]]] = []

    def __call__(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        self.asked.append([[place + 1 for place in row] for row in rows])
        return [[1 / MEASURED[place] for place in row] for row in rows]


def test_the_best_predicted_are_measured_in_one_call_and_the_fastest_is_taken() -> None:
    machine = Machine()
    [ten] = measured_in_turns("order", [shortlist()], Trials(10, machine))
    assert (ten.chosen, len(ten.measured), machine.asked) == ("4", 10, [[[*range(1, 11)]]])
    [twelve] = measured_in_turns("order", [shortlist()], Trials(12, machine))
    assert twelve.chosen == "12"


def test_several_lists_are_measured_together_and_recorded_apart() -> None:
    machine = Machine()
    first, second = measured_in_turns("order", [shortlist("one"), shortlist("two", [1])], Trials(2, machine))
    assert machine.asked == [[[1, 2], [2, 3]]]
    assert (first.what, first.chosen, second.what, second.chosen) == ("one", "2", "two", "2")


def test_after_one_that_does_not_run_the_next_takes_its_turn() -> None:
    machine = Machine()
    [found] = measured_in_turns("order", [shortlist(excluded=(1, 3))], Trials(2, machine))
    assert machine.asked == [[[2, 4]]]
    assert [each.excluded for each in found.ranked[:4]] == ["it is too large", None, "it is too large", None]


def test_where_none_runs_nothing_is_started() -> None:
    machine = Machine()
    with pytest.raises(InputError, match="found no two that may be taken: it is too large"):
        measured_in_turns("order", [shortlist("one"), shortlist("two", range(13))], Trials(2, machine))
    assert machine.asked == []
