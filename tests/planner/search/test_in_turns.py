"""The best of several rankings measured together: the oracle of `measure_top`, what does not run, a time that is over,
and Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from treadle.planner.documents.tuned import Tuned
from treadle.planner.errors import InputError
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import Measuring, Shortlist, cut_short, measure_in_turns, runs_here
from treadle.planner.search.top import Outcome, Predicted, measure_top

TIMES = (5, 6, 4, 9, 3, 2, 8, 1, 7, 5.5, 20, 30)
CHOICES = [Predicted(f"c{number}", number) for number in range(1, 13)]
"""The oracle: twelve choices, predicted 1 to 12."""
COSTS = [1 / speed for speed in TIMES]


class Machine:
    """Measures the first `most` of each row by the list, and keeps what it was asked for."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.asked: list[list[list[int]]] = []

    def __call__(self, rows: Sequence[Sequence[int]]) -> list[Mapping[int, Outcome]]:
        self.asked.append([list(row) for row in rows])
        return [{at: Outcome(COSTS[place]) for at, place in enumerate(row[: self.most])} for row in rows]


def shortlist(what: str = "choice") -> Shortlist[int]:
    return Shortlist(what, CHOICES, range(12))


def measured(
    machine: Machine, top: int, ready: Callable[[int], str] = runs_here, clock: Clock | None = None
) -> tuple[Tuned, Clock]:
    clock = clock or Clock()
    [tuned] = measure_in_turns("model", [shortlist()], Measuring(top, machine, ready), clock)
    return tuned, clock


@pytest.mark.parametrize(("top", "chosen"), [(10, "c4"), (12, "c12")])
def test_it_chooses_as_one_after_the_other_does(top: int, chosen: str) -> None:
    machine = Machine()
    tuned, clock = measured(machine, top)
    assert tuned.chosen == chosen
    assert machine.asked == [[[*range(top)]]], "in one call"
    assert tuned == measure_top("choice", "model", CHOICES, top, lambda place: Outcome(COSTS[place]))
    assert not cut_short(tuned, clock)


def test_several_lists_are_measured_together_and_recorded_apart() -> None:
    machine = Machine()
    lists = [shortlist("one"), Shortlist("two", CHOICES, range(11, -1, -1))]
    first, second = measure_in_turns("model", lists, Measuring(2, machine, machine="lab"), Clock())
    assert machine.asked == [[[0, 1], [11, 10]]]
    assert (first.what, first.chosen, second.what, second.chosen) == ("one", "c2", "two", "c1")
    assert first.model == "model on lab"


def test_what_does_not_run_gives_its_turn_to_the_next() -> None:
    tuned, _ = measured(Machine(), 2, lambda place: "too long" if place in (0, 2) else "")
    assert [(each.name, each.excluded) for each in tuned.ranked[:4]] == [
        ("c1", "too long"),
        ("c2", None),
        ("c3", "too long"),
        ("c4", None),
    ]
    assert tuned.chosen == "c4"
    assert [each.measured_ns for each in tuned.ranked[4:]] == [None] * 8


def test_where_time_is_over_nothing_after_the_first_untried_is_recorded() -> None:
    tuned, clock = measured(Machine(most=1), 3, lambda place: "too long" if place == 1 else "")
    assert tuned.chosen == "c1"
    assert [each.excluded for each in tuned.ranked[:3]] == [None, "too long", None]
    assert len(tuned.measured) == 1
    assert cut_short(tuned, clock)
    clock.stop.set()
    assert not cut_short(tuned, clock), "that was Ctrl-C, and no limit"


def test_where_nothing_of_a_list_runs_nothing_is_started() -> None:
    machine = Machine()
    lists = [shortlist("one"), Shortlist("two", CHOICES, range(12, 24))]
    with pytest.raises(InputError, match="found no two that may be taken: no compiler"):
        measure_in_turns(
            "model", lists, Measuring(3, machine, lambda place: "no compiler" if place > 11 else ""), Clock()
        )
    assert machine.asked == []


def test_ctrl_c_leaves_no_record_and_is_remembered() -> None:
    def interrupted(rows: Sequence[Sequence[int]]) -> list[Mapping[int, Outcome]]:
        raise KeyboardInterrupt

    clock = Clock()
    assert measure_in_turns("model", [shortlist()], Measuring(3, interrupted), clock) == []
    assert clock.stop.is_set()
