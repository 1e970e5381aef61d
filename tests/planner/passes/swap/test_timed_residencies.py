"""Places of stays: who takes whose."""

from __future__ import annotations

from treadle.planner.passes.swap.timed_residencies import TimedResidency, objects, tokens

GONE = TimedResidency(0, "start", "drop", 0, 0, 0, 0, ())
LASTS = TimedResidency(1, "start", "end", 0, 0, 9, 9, (0,))
COMES = TimedResidency(2, "in", "drop", 0, 3, 5, 5, (0,))


def test_what_is_there_from_the_start_takes_nobodys_place() -> None:
    """Both are there when the iteration starts, even if one leaves at once."""
    assert objects([GONE, LASTS], [0, 0], [10], [0]).at == [0, 10]
    assert tokens([GONE, LASTS], [10, 10], 20).after == [[], []]


def test_who_arrives_takes_the_place_of_who_left() -> None:
    assert objects([GONE, LASTS, COMES], [0, 0, 0], [10], [0]) == ([0, 10, 0], [[], [], [0]])
    assert tokens([GONE, LASTS, COMES], [10, 10, 10], 20).after == [[], [], [0]]
