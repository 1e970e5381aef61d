"""The few choices that a model likes best are measured, and the fastest of them that may be taken is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.planner.documents.plan import Provenance
from treadle.planner.documents.tuned import Tuned
from treadle.planner.errors import InputError
from treadle.planner.search.check_tuned import check_tuned
from treadle.planner.search.clock import Clock
from treadle.planner.search.top import DOES_NOT_RUN, LISTED, Outcome, Predicted, by_prediction, measure_top, recorded

SPEEDS_PREDICTED = range(12, 0, -1)
SPEEDS_MEASURED = (5, 6, 4, 9, 3, 2, 8, 1, 7, 5.5, 20, 30)
TWELVE = [Predicted(f"number {at}", 1e6 / speed) for at, speed in enumerate(SPEEDS_PREDICTED, 1)]


def tuned(
    choices: Sequence[Predicted], top: int, measure: Callable[[int], Outcome], **others: Callable[[], bool]
) -> Tuned:
    return measure_top("configuration", "a guess", choices, top, measure, **others)


@pytest.mark.parametrize(("top", "expected"), [(10, "number 4"), (12, "number 12")])
def test_twelve_configurations_by_speed(top: int, expected: str) -> None:
    """MAPLE, "Selecting MAPLE parameters": a higher throughput is a shorter time."""
    order: list[int] = []

    def measure(place: int) -> Outcome:
        order.append(place)
        return Outcome(1e6 / SPEEDS_MEASURED[place])

    found = tuned(TWELVE, top, measure)
    assert found.chosen == expected
    assert order == list(range(top)), "exactly as many measurements, the best predicted first"
    assert [each.name for each in found.measured] == [choice.name for choice in TWELVE[:top]]
    assert found.place == int(expected.split()[1])
    assert check_tuned(Provenance(tool="t", method="m", tuned=(found,))) == []


def test_the_turn_of_what_does_not_run_goes_to_the_next() -> None:
    found = tuned(TWELVE, 3, lambda place: Outcome(None if place in (0, 2) else 10.0 - place))
    assert [each.name for each in found.measured] == ["number 2", "number 4", "number 5"]
    assert [each.excluded for each in found.ranked[:3]] == [DOES_NOT_RUN, None, DOES_NOT_RUN]
    assert found.chosen == "number 5"


def test_what_is_excluded_is_measured_and_not_taken() -> None:
    found = tuned(TWELVE, 3, lambda place: Outcome(1.0 + place, "too large" if place == 0 else ""))
    assert (found.chosen, len(found.measured)) == ("number 2", 3)
    assert found.ranked[0].excluded == "too large"


def test_ties_go_to_the_best_predicted() -> None:
    same = [Predicted(name, 1.0) for name in "abc"]
    found = tuned(same, 3, lambda place: Outcome(7.0))
    assert ([each.name for each in found.ranked], found.chosen) == (["a", "b", "c"], "a")


@pytest.mark.parametrize("ns", [0.0, -1.0, math.nan, math.inf])
def test_a_measured_time_that_is_none_is_refused(ns: float) -> None:
    with pytest.raises(InputError, match=r"configuration: found .* ns measured of number 1, expected more than 0"):
        tuned(TWELVE, 3, lambda place: Outcome(ns))


@pytest.mark.parametrize("ns", [-1.0, math.nan, math.inf])
def test_a_predicted_time_that_is_none_is_refused_before_anything_is_measured(ns: float) -> None:
    with pytest.raises(InputError, match="ns predicted of odd, expected 0 or more"):
        tuned([*TWELVE, Predicted("odd", ns)], 3, lambda place: pytest.fail("measured"))


def test_one_name_for_two_choices_is_refused() -> None:
    with pytest.raises(InputError, match="two choices of one name"):
        tuned([*TWELVE, TWELVE[0]], 3, lambda place: pytest.fail("measured"))


def test_nothing_that_may_be_taken_is_one_line_with_the_reasons() -> None:
    with pytest.raises(InputError, match=r"found no configuration that may be taken: too large; it does not run here"):
        tuned(TWELVE, 3, lambda place: Outcome(5.0, "too large") if place < 2 else Outcome(None))
    with pytest.raises(InputError, match="nothing was measured"):
        tuned([], 3, lambda place: Outcome(5.0))


@pytest.mark.parametrize("how", ["late", "interrupted"])
def test_the_clock_ends_it_after_the_first_that_ran(how: str) -> None:
    now = [0.0]
    clock = Clock(ends=5.0, began=0.0, now=lambda: now[0])

    def measure(place: int) -> Outcome:
        if how == "late":
            now[0] += 10.0
        else:
            clock.stop.set()
        return Outcome(None if place == 0 else 10.0)

    found = tuned(TWELVE, 10, measure, over=clock.over)
    assert [each.name for each in found.measured] == ["number 2"], "the first that runs always is"
    made = Provenance(tool="t", method="m", tuned=(found,))
    assert len(check_tuned(made)) == 1
    cut = Provenance(tool="t", method="m", tuned=(found,), limit_fired=clock.late(), interrupted=clock.stop.is_set())
    assert check_tuned(cut) == []


def test_a_record_lists_the_best_predicted_and_counts_the_others() -> None:
    many = [Predicted(str(place), float(place)) for place in range(3 * LISTED)]
    found = recorded("schedule", "prices", many, 2, {0: Outcome(5.0), 1: Outcome(4.0)})
    assert (len(found.ranked), found.unlisted, found.chosen) == (LISTED, 2 * LISTED, "1")
    assert check_tuned(Provenance(tool="t", method="m", tuned=(found,))) == []


CHOICES = st.lists(
    st.tuples(
        st.floats(0, 1e12),
        st.one_of(st.none(), st.floats(1e-3, 1e12), st.integers(1, 3).map(float)),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(CHOICES, st.integers(1, 14))
def test_as_brute_force_does(drawn: list[tuple[float, float | None, bool]], top: int) -> None:
    choices = [Predicted(str(place), predicted) for place, (predicted, _, _) in enumerate(drawn)]
    outcomes = [Outcome(ns, "no" if excluded else "") for _, ns, excluded in drawn]
    ranked = [place for _, place in sorted((predicted, place) for place, (predicted, _, _) in enumerate(drawn))]
    running = [place for place in ranked if outcomes[place].ns is not None][:top]
    allowed = [place for place in running if not outcomes[place].excluded]
    assert by_prediction(choices) == ranked
    if not allowed:
        with pytest.raises(InputError):
            tuned(choices, top, outcomes.__getitem__)
        return
    tried: list[int] = []

    def measure(place: int) -> Outcome:
        tried.append(place)
        return outcomes[place]

    found = tuned(choices, top, measure)
    assert [each.name for each in found.measured] == [str(place) for place in running]
    assert found.chosen == str(min(allowed, key=lambda place: (outcomes[place].ns, ranked.index(place))))
    last = ranked.index(running[-1]) + 1 if len(running) == top else len(ranked)
    assert tried == ranked[:last]
    assert check_tuned(Provenance(tool="t", method="m", tuned=(found,))) == []
