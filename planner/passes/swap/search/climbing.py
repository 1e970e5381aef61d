"""Steepest ascent over pools, which completes what a genetic search comes near to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from treadle.planner.passes.swap.search.executors import Evaluate
from treadle.planner.passes.swap.search.individual import Individual, Scored, SearchSpace, fitting, floors
from treadle.planner.passes.swap.search.repair import averaged, extended, object_bytes, renumbered
from treadle.planner.passes.swap.search.tasks import EvaluationTask

PART = 8
"""A class gives up one object, or this share of its objects."""


def climbed(space: SearchSpace, start: Scored, evaluate: Evaluate, rounds: int) -> Scored:
    """The best neighbour of the best so far, repeatedly, until none is better or `rounds` have passed."""
    best = start
    for _ in range(rounds):
        families = evaluate([EvaluationTask((individual,)) for individual in neighbours(space, best.individual)])
        found = [one for family in families for one in family or () if one.time is not None]
        top = min(found, key=lambda one: one.time or 0, default=best)
        if best.time is not None and (top.time is None or top.time >= best.time):
            return best
        best = top
        if None in families:
            return best
    return best


def neighbours(space: SearchSpace, individual: Individual) -> Iterator[Individual]:
    """Pools in which objects of a class are exchanged for objects of another, and those in which one size starts a
    class or no longer does."""
    order, classes, counts = individual
    objects, least = object_bytes(classes, space.arrays.sizes), floors(space, classes)
    for giving in range(len(counts)):
        spare = int(counts[giving] - least[giving])
        for less in sorted({min(spare, 1), min(spare, -(-int(counts[giving]) // PART))} - {0}):
            left = counts.copy()
            left[giving] -= less
            room = space.memory - int((left * objects).sum())
            for taking in range(len(counts)):
                more = room // int(objects[taking])
                if taking != giving and more:
                    given = left.copy()
                    given[taking] += more
                    yield Individual(order, *fitting(space, classes, given))
    for at in range(1, len(classes)):
        steps = np.diff(classes)
        steps[at - 1] = 0 if steps[at - 1] else 1
        moved = renumbered(np.concatenate(([1], 1 + np.cumsum(steps))))
        yield Individual(order, *fitting(space, moved, averaged(extended(classes, counts), moved)))
