"""Rank by model, measure the top k, record both.

A model that is cheap ranks all choices; the few that it likes best are measured, and the fastest measured one is taken
(MAPLE, "Selecting MAPLE parameters"). A choice that was not measured is never taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from treadle.planner.documents.tuned import RankedChoice, Tuned
from treadle.planner.errors import InputError
from treadle.planner.search.clock import Expired, never

LISTED = 100
"""Choices that a record lists, at least; the others are counted."""
DOES_NOT_RUN = "it does not run here"


class Predicted(NamedTuple):
    """A choice by name, and what a model says that it takes, in ns."""

    name: str
    ns: float


class Outcome(NamedTuple):
    """What a measurement found: ns, None where the choice does not run here; and why it may not be taken, if so."""

    ns: float | None
    excluded: str = ""


def by_prediction(choices: Sequence[Predicted]) -> list[int]:
    """Places of the choices, the best predicted first; equal ones in their order."""
    return sorted(range(len(choices)), key=lambda place: choices[place].ns)


def measure_top(
    what: str,
    model: str,
    choices: Sequence[Predicted],
    top: int,
    measure: Callable[[int], Outcome],
    over: Expired = never,
) -> Tuned:
    """Measure the `top` choices that are predicted to be best, by their place in `choices`, and take the fastest.

    A choice that does not run is recorded and the next one takes its turn. Once `over`, no further choice is measured
    after the first that ran; the plan then records a fired limit or an interrupt. Raises InputError where none may be
    taken, or for a time that is none.
    """
    _require_times(what, choices)
    outcomes: dict[int, Outcome] = {}
    ran = 0
    for place in by_prediction(choices):
        if ran == top or (ran and over()):
            break
        outcomes[place] = measure(place)
        ran += outcomes[place].ns is not None
    return recorded(what, model, choices, top, outcomes)


def recorded(what: str, model: str, choices: Sequence[Predicted], top: int, outcomes: Mapping[int, Outcome]) -> Tuned:
    """The record of choices of which some were tried, with the fastest that may be taken; `outcomes` by place.

    Of equally fast ones the best predicted is taken. Raises InputError, which names the reasons, where none may be, or
    for a time that is none.
    """
    _require_times(what, choices, outcomes)
    order = by_prediction(choices)
    ranked = [_ranked(choices[place], outcomes.get(place)) for place in order]
    allowed = [each for each in ranked if each.measured_ns is not None and each.excluded is None]
    if not allowed:
        why = "; ".join(dict.fromkeys(each.excluded for each in ranked if each.excluded))
        raise InputError(f"found no {what} that may be taken: {why or 'nothing was measured'}", where=what)
    chosen = min(allowed, key=lambda each: each.measured_ns or 0.0)
    tried = max(at for at, place in enumerate(order, 1) if place in outcomes)
    listed = tuple(ranked[: max(tried, LISTED)])
    return Tuned(what=what, model=model, top=top, ranked=listed, chosen=chosen.name, unlisted=len(ranked) - len(listed))


def _ranked(choice: Predicted, outcome: Outcome | None) -> RankedChoice:
    if outcome is None:
        return RankedChoice(name=choice.name, predicted_ns=choice.ns)
    excluded = outcome.excluded or (DOES_NOT_RUN if outcome.ns is None else None)
    return RankedChoice(name=choice.name, predicted_ns=choice.ns, measured_ns=outcome.ns, excluded=excluded)


def _require_times(what: str, choices: Sequence[Predicted], outcomes: Mapping[int, Outcome] = {}) -> None:
    """Raises InputError for a prediction below 0, a measurement of 0 or below, for NaN and infinity, and where two
    choices have one name."""
    for choice in choices:
        if not 0 <= choice.ns < math.inf:
            raise InputError(f"found {choice.ns} ns predicted of {choice.name}, expected 0 or more", where=what)
    for place, outcome in outcomes.items():
        if outcome.ns is not None and not 0 < outcome.ns < math.inf:
            raise InputError(
                f"found {outcome.ns} ns measured of {choices[place].name}, expected more than 0", where=what
            )
    if len({choice.name for choice in choices}) < len(choices):
        raise InputError("found two choices of one name, expected every choice once", where=what)
