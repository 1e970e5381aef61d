"""Rank by model, measure the top k, record both.

A model that is cheap ranks all choices; the few that it likes best are measured, and the fastest measured one is taken
(MAPLE, "Selecting MAPLE parameters"). A choice that was not measured is never taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from treadle.planner.documents.tuned import RankedChoice, Tuned
from treadle.planner.errors import InputError
from treadle.planner.search.clock import Expired, never


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
    after the first that ran. Raises InputError where none may be taken.
    """
    outcomes: dict[int, Outcome] = {}
    ran = 0
    for place in by_prediction(choices):
        if ran == top or (ran and over()):
            break
        outcomes[place] = measure(place)
        ran += outcomes[place].ns is not None
    return recorded(what, model, choices, top, outcomes)


def recorded(what: str, model: str, choices: Sequence[Predicted], top: int, outcomes: Mapping[int, Outcome]) -> Tuned:
    """The record of choices of which some were measured, with the fastest that may be taken.

    Raises InputError, which names the reasons, where none may be.
    """
    order = by_prediction(choices)
    allowed = [place for place in order if place in outcomes and outcomes[place].ns and not outcomes[place].excluded]
    if not allowed:
        why = "; ".join(dict.fromkeys(outcome.excluded for outcome in outcomes.values() if outcome.excluded))
        raise InputError(f"found no {what} that may be taken: {why or 'nothing was measured'}", where=what)
    chosen = min(allowed, key=lambda place: outcomes[place].ns or 0.0)
    ranked = tuple(
        RankedChoice(
            name=choices[place].name,
            predicted_ns=choices[place].ns,
            measured_ns=outcomes[place].ns if place in outcomes else None,
            excluded=(outcomes[place].excluded or None) if place in outcomes else None,
        )
        for place in order
    )
    return Tuned(what=what, model=model, top=top, ranked=ranked, chosen=choices[chosen].name)
