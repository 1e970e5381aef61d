"""One unit of the search's work: individuals that are made and evaluated in one process."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.planner.passes.swap.search.individual import Individual, Scored, SearchSpace, children, random_individual


class EvaluationTask(NamedTuple):
    """Two `parents` have four children, one is evaluated unchanged, none means a random individual. `key` seeds all
    random numbers."""

    parents: tuple[Individual, ...]
    key: tuple[int, ...] = ()


def evaluated(space: SearchSpace, task: EvaluationTask) -> list[Scored]:
    """The individuals of a task with their times."""
    if not task.parents:
        made = [random_individual(space, np.random.default_rng(task.key))]
    elif len(task.parents) == 1:
        made = list(task.parents)
    else:
        made = children(space, task.parents[0], task.parents[1], task.key)
    return [Scored(individual, space.time_of(individual)) for individual in made]


def all_evaluated(space: SearchSpace, tasks: list[EvaluationTask]) -> list[list[Scored]]:
    """The same for several tasks."""
    return [evaluated(space, task) for task in tasks]
