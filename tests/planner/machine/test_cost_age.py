"""Age of measured costs, with a clock that stands still."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from treadle.planner.documents.cost_matrix import CostHost, CostMatrix
from treadle.planner.machine.cost_age import OLDEST, age_of, in_words, old_costs, stamp

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def measured(before: timedelta | None) -> CostMatrix:
    when = None if before is None else stamp(NOW - before)
    return CostMatrix(version=1, name="m", hosts=(CostHost(name="a"),), latency_us=((0.0,),), measured_at=when)


def test_old_costs_are_warned_of_and_others_are_not() -> None:
    assert old_costs(measured(OLDEST), "m.json", NOW) is None
    assert old_costs(measured(None), "m.json", NOW) is None
    line = old_costs(measured(timedelta(days=3)), "m.json", NOW)
    assert line == "m.json was measured 3 days ago, and networks change; measure again if it may have changed"
    assert old_costs(measured(timedelta(days=3)), "m.json", NOW, oldest=timedelta(days=4)) is None
    assert old_costs(measured(timedelta(hours=3)), "m.json", NOW, oldest=timedelta(hours=1)) is not None


def test_a_clock_that_is_behind_makes_no_negative_age() -> None:
    assert age_of(measured(timedelta(hours=-5)), NOW) == timedelta(0)
    assert age_of(measured(timedelta(seconds=90)), NOW) == timedelta(seconds=90)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "less than a minute"),
        (60, "1 minute"),
        (119, "1 minute"),
        (120, "2 minutes"),
        (7200, "2 hours"),
        (172800, "2 days"),
    ],
)
def test_ages_in_words(seconds: int, words: str) -> None:
    assert in_words(timedelta(seconds=seconds)) == words
