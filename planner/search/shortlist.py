"""The best few of several rankings, measured in one run and in turns: what disturbs a machine then disturbs all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from treadle.planner.documents.tuned import Tuned
from treadle.planner.search.top import Outcome, Predicted, by_prediction, recorded

D = TypeVar("D")


@dataclass(frozen=True)
class Trials(Generic[D]):
    """The `top` choices of each ranking are measured; `run` returns ns for rows of choices, those of a row in turns.
    `machine` is the name of what they are priced for."""

    top: int
    run: Callable[[Sequence[Sequence[D]]], Sequence[Sequence[float]]]
    machine: str = "this machine"


@dataclass(frozen=True)
class Shortlist(Generic[D]):
    """What is chosen, its choices as a model ranks them, and what they are; by place, why one does not run here."""

    what: str
    predicted: Sequence[Predicted]
    choices: Sequence[D]
    excluded: Callable[[int], str] = lambda _: ""

    def tried(self, top: int) -> dict[int, Outcome | None]:
        """The places that are tried, the best predicted first; with an outcome those that do not run."""
        found: dict[int, Outcome | None] = {}
        for place in by_prediction(self.predicted):
            if sum(each is None for each in found.values()) == top:
                break
            why = self.excluded(place)
            found[place] = Outcome(None, why) if why else None
        return found


def measured_in_turns(model: str, shortlists: Sequence[Shortlist[D]], trials: Trials[D]) -> list[Tuned]:
    """The record of each list, ranked by `model` for the machine of the trials. Raises InputError where no choice of a
    list runs, and what `trials.run` raises."""
    model = f"{model} on {trials.machine}"
    tried = [each.tried(trials.top) for each in shortlists]
    places = [[place for place, outcome in each.items() if outcome is None] for each in tried]
    rows = [[each.choices[place] for place in row] for each, row in zip(shortlists, places, strict=True)]
    for each, outcomes, row in zip(shortlists, tried, rows, strict=True):
        if not row:  # raises with the reasons, before anything is started
            _recorded(each, model, trials.top, outcomes, {})
    return [
        _recorded(each, model, trials.top, outcomes, dict(zip(row, ns, strict=True)))
        for each, outcomes, row, ns in zip(shortlists, tried, places, trials.run(rows), strict=True)
    ]


def _recorded(
    of: Shortlist[D], model: str, top: int, tried: Mapping[int, Outcome | None], ns: Mapping[int, float]
) -> Tuned:
    outcomes = {place: outcome or Outcome(ns[place]) for place, outcome in tried.items() if outcome or place in ns}
    return recorded(of.what, model, of.predicted, top, outcomes)
