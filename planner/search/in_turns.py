"""Measure the top k in turns: each round runs every choice once, so that a machine that slows down slows them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

from treadle.planner.documents.tuned import Tuned
from treadle.planner.search.top import Outcome, Predicted, by_prediction, recorded


def measure_in_turns(
    what: str,
    model: str,
    choices: Sequence[Predicted],
    top: int,
    ready: Callable[[int], str],
    run: Callable[[Sequence[int]], Mapping[int, Outcome]],
) -> Tuned:
    """As `measure_top`, for choices that run together. `ready` says why the choice at a place does not run here, and
    nothing where it does; `run` measures those at the places given, the best predicted first, as far as its time goes.

    Raises InputError where none may be taken.
    """
    outcomes: dict[int, Outcome] = {}
    running: list[int] = []
    order = by_prediction(choices)
    for place in order:
        if len(running) == top:
            break
        if why := ready(place):
            outcomes[place] = Outcome(None, why)
        else:
            running.append(place)
    if running:
        outcomes |= run(running)
    tried = takewhile(lambda place: place in outcomes, order)
    return recorded(what, model, choices, top, {place: outcomes[place] for place in tried})
