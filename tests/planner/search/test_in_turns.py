"""The top k measured together: the oracle of `measure_top`, what does not run, and a time that is over."""

from __future__ import annotations

import pytest

from treadle.planner.errors import InputError
from treadle.planner.search.in_turns import Measuring, cut_short, measure_in_turns
from treadle.planner.search.top import Outcome, Predicted, measure_top

TIMES = (5, 6, 4, 9, 3, 2, 8, 1, 7, 5.5, 20, 30)
CHOICES = [Predicted(f"c{number}", number) for number in range(1, 13)]
"""The oracle: twelve choices, predicted 1 to 12."""
COSTS = [1 / speed for speed in TIMES]


def times_of(costs, most=None):
    return lambda places: {at: Outcome(costs[place]) for at, place in enumerate(places[:most])}


@pytest.mark.parametrize(("top", "chosen"), [(10, "c4"), (12, "c12")])
def test_it_chooses_as_one_after_the_other_does(top, chosen):
    measuring = Measuring(top, lambda place: "", times_of(COSTS))
    tuned = measure_in_turns("choice", "model", CHOICES, range(12), measuring)
    assert tuned.chosen == chosen
    assert len(tuned.measured) == top
    assert tuned == measure_top("choice", "model", CHOICES, top, lambda place: Outcome(COSTS[place]))
    assert not cut_short(tuned)


def test_what_does_not_run_gives_its_turn_to_the_next():
    measuring = Measuring(2, lambda place: "too long" if place in (0, 2) else "", times_of(COSTS))
    tuned = measure_in_turns("choice", "model", CHOICES, range(12), measuring)
    assert [(each.name, each.excluded) for each in tuned.ranked[:4]] == [
        ("c1", "too long"),
        ("c2", None),
        ("c3", "too long"),
        ("c4", None),
    ]
    assert tuned.chosen == "c4"
    assert [each.measured_ns for each in tuned.ranked[4:]] == [None] * 8


def test_where_time_is_over_nothing_after_the_first_untried_is_recorded():
    measuring = Measuring(3, lambda place: "too long" if place == 1 else "", times_of(COSTS, most=1))
    tuned = measure_in_turns("choice", "model", CHOICES, range(12), measuring)
    assert tuned.chosen == "c1"
    assert [each.excluded for each in tuned.ranked[:3]] == [None, "too long", None]
    assert len(tuned.measured) == 1
    assert cut_short(tuned)


def test_a_choice_that_nothing_runs_is_an_error():
    measuring = Measuring(3, lambda place: "no compiler", times_of(COSTS))
    with pytest.raises(InputError, match="found no choice that may be taken: no compiler"):
        measure_in_turns("choice", "model", CHOICES, range(12), measuring)
