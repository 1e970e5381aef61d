"""The genetic search itself: pairs, four children each, survival by softmax (SwapAdvisor, section 4.4, figure 4.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from treadle.planner.documents.plan import Generation
from treadle.planner.passes.swap.search.executors import Evaluate
from treadle.planner.passes.swap.search.individual import Individual, Scored, SearchSpace
from treadle.planner.passes.swap.search.selection import survivors
from treadle.planner.passes.swap.search.tasks import EvaluationTask

REST = 20


class GeneticParameters(NamedTuple):
    """Size, length and selection of the search."""

    population: int = 144
    generations: int = 100
    patience: int | None = None
    """Generations without improvement after which it ends."""
    temperature: float = 1.0
    seed: int = 0


class Evolution(NamedTuple):
    """`best` is None where no individual had a plan. `stopped`: the search was ended early."""

    best: Scored | None
    log: tuple[Generation, ...]
    stopped: bool


def evolve(
    space: SearchSpace,
    effort: GeneticParameters,
    evaluate: Evaluate,
    planted: Sequence[Individual] = (),
    enough: int = 0,
    refine: Callable[[Scored], Scored] | None = None,
    on_best: Callable[[Scored], None] = lambda scored: None,
    on_generation: Callable[[Generation], None] = lambda generation: None,
) -> Evolution:
    """Search from `planted` individuals and random ones, until a plan takes `enough` ns or less. A best one that has
    not improved for REST generations is refined, if `refine` is given, and added to the population.

    `evaluate` evaluates tasks in any process; the outcome does not depend on that, since each task holds the seed of
    its random numbers. The best individual of all is kept outside the population.
    """
    tasks = [EvaluationTask((individual,)) for individual in planted]
    tasks += [EvaluationTask((), (effort.seed, 0, at)) for at in range(effort.population - len(planted))]
    population, complete = _results(evaluate(tasks))
    best: Scored | None = None
    log: list[Generation] = []
    since = 0
    for number in range(effort.generations + 1):
        found = min(population, key=_time, default=None)
        since += 1
        if found is not None and found.time is not None and (best is None or found.time < _time(best)):
            best, since = found, 0
            on_best(found)
        if refine is not None and best is not None and since == REST and complete:
            refined = refine(best)
            if _time(refined) < _time(best):
                best, since = refined, 0
                population = [*population, refined]
                on_best(refined)
        rng = np.random.default_rng([effort.seed, number + 1])
        if len(population) > effort.population:
            times = [scored.time for scored in population]
            chosen = survivors(
                times, 0 if best is None else int(_time(best)), effort.population, effort.temperature, rng
            )
            population = [population[i] for i in chosen]
        if best is not None:
            log.append(_summary(number, best, population))
            on_generation(log[-1])
        if not complete:
            return Evolution(best, tuple(log), True)
        if (best is not None and _time(best) <= enough) or number == effort.generations:
            break
        if effort.patience is not None and since >= effort.patience:
            break
        pairs = rng.permutation(len(population))
        tasks = [
            EvaluationTask((population[a].individual, population[b].individual), (effort.seed, number + 1, at))
            for at, (a, b) in enumerate(zip(pairs[::2], pairs[1::2], strict=False))
        ]
        born, complete = _results(evaluate(tasks))
        population = population + born
    return Evolution(best, tuple(log), False)


def _results(families: Sequence[list[Scored] | None]) -> tuple[list[Scored], bool]:
    """The individuals of all families that were evaluated, and whether all were."""
    return [scored for family in families for scored in family or ()], None not in families


def _time(scored: Scored) -> float:
    return float("inf") if scored.time is None else scored.time


def _summary(number: int, best: Scored, population: Sequence[Scored]) -> Generation:
    times = [scored.time for scored in population if scored.time is not None] or [int(_time(best))]
    return Generation(number=number, best_ns=int(_time(best)), mean_ns=sum(times) // len(times), worst_ns=max(times))
