"""Measure the top k in turns: each round runs every choice once, so that a machine that slows down slows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, TypeVar

from treadle.planner.documents.tuned import Tuned
from treadle.planner.search.top import Outcome, Predicted, by_prediction, recorded

T = TypeVar("T")


@dataclass(frozen=True)
class Measuring(Generic[T]):
    """How the `top` best predicted of several choices are measured."""

    top: int
    ready: Callable[[T], str]
    """Why a choice does not run here, empty where it does."""
    run: Callable[[Sequence[T]], Mapping[int, Outcome]]
    """Measures choices, the best predicted first, as far as its time goes; outcomes by place in what it is given."""


def measure_in_turns(
    what: str, model: str, choices: Sequence[Predicted], subjects: Sequence[T], measuring: Measuring[T]
) -> Tuned:
    """As `measure_top`, for choices that are measured together; `subjects` are what is run for each of them.

    Raises InputError where none may be taken.
    """
    outcomes: dict[int, Outcome] = {}
    running: list[int] = []
    order = by_prediction(choices)
    for place in order:
        if len(running) == measuring.top:
            break
        if why := measuring.ready(subjects[place]):
            outcomes[place] = Outcome(None, why)
        else:
            running.append(place)
    if running:
        found = measuring.run([subjects[place] for place in running])
        outcomes |= {running[at]: outcome for at, outcome in found.items()}
    tried = takewhile(lambda place: place in outcomes, order)
    return recorded(what, model, choices, measuring.top, {place: outcomes[place] for place in tried})


def cut_short(tuned: Tuned) -> bool:
    """Whether some choice that should have been measured was not tried: its time was over."""
    untried = any(each.measured_ns is None and each.excluded is None for each in tuned.ranked) or tuned.unlisted > 0
    return len(tuned.measured) < tuned.top and untried
