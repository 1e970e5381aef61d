"""Measure the best few of one or several rankings in turns: what disturbs a machine then disturbs them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, TypeVar

from treadle.planner.documents.tuned import Tuned
from treadle.planner.search.clock import Clock
from treadle.planner.search.top import Outcome, Predicted, by_prediction, recorded

T = TypeVar("T")

SEARCHED = 0.6
"""Share of the time limit for a search whose best results are measured after it."""


def runs_here(choice: object) -> str:
    """No reason against it."""
    return ""


@dataclass(frozen=True)
class Measuring(Generic[T]):
    """How the `top` best predicted of several choices are measured."""

    top: int
    run: Callable[[Sequence[Sequence[T]]], Sequence[Mapping[int, Outcome]]]
    """Measures rows of choices, those of a row in turns and the best predicted first, as far as its time goes; outcomes
    by place in the row, of each row at least the first."""
    ready: Callable[[T], str] = runs_here
    """Why a choice does not run here, empty where it does."""
    machine: str = ""
    """The name of what the choices are priced for, if it has one."""


@dataclass(frozen=True)
class Shortlist(Generic[T]):
    """What is chosen, its choices as a model ranks them, and what is run for each of them."""

    what: str
    predicted: Sequence[Predicted]
    choices: Sequence[T]

    def tried(self, measuring: Measuring[T]) -> dict[int, Outcome | None]:
        """The places that are tried, the best predicted first; with an outcome those that do not run."""
        found: dict[int, Outcome | None] = {}
        for place in by_prediction(self.predicted):
            if sum(each is None for each in found.values()) == measuring.top:
                break
            why = measuring.ready(self.choices[place])
            found[place] = Outcome(None, why) if why else None
        return found


def measure_in_turns(
    model: str, shortlists: Sequence[Shortlist[T]], measuring: Measuring[T], clock: Clock
) -> list[Tuned]:
    """The record of each list, as that of `measure_top`; none where Ctrl-C ends the measurement, which `clock` then
    remembers.

    Raises InputError where no choice of a list may be taken, before anything is started if none runs, and what
    `measuring.run` raises.
    """
    model = f"{model} on {measuring.machine}" if measuring.machine else model
    tried = [each.tried(measuring) for each in shortlists]
    places = [[place for place, outcome in each.items() if outcome is None] for each in tried]
    for of, outcomes, row in zip(shortlists, tried, places, strict=True):
        if not row:
            _recorded(of, model, measuring.top, outcomes)
    try:
        found = measuring.run(
            [[of.choices[place] for place in row] for of, row in zip(shortlists, places, strict=True)]
        )
    except KeyboardInterrupt:
        clock.stop.set()
        return []
    return [
        _recorded(of, model, measuring.top, outcomes | {row[at]: outcome for at, outcome in ran.items()})
        for of, outcomes, row, ran in zip(shortlists, tried, places, found, strict=True)
    ]


def _recorded(of: Shortlist[T], model: str, top: int, tried: Mapping[int, Outcome | None]) -> Tuned:
    """The record of what was tried, up to the first that no time was left for."""
    known = takewhile(lambda each: each[1] is not None, tried.items())
    outcomes = {place: outcome for place, outcome in known if outcome is not None}
    return recorded(of.what, model, of.predicted, top, outcomes)


def cut_short(tuned: Tuned, clock: Clock) -> bool:
    """Whether the limit, and not Ctrl-C, left some choice untried that should have been measured."""
    if clock.stop.is_set():
        return False
    untried = any(each.measured_ns is None and each.excluded is None for each in tuned.ranked) or tuned.unlisted > 0
    return len(tuned.measured) < tuned.top and untried
