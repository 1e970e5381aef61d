"""Random changes of an order and of a pool (SwapAdvisor, section 4.4)."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from treadle.planner.passes.swap.arrays import Ints
from treadle.planner.passes.swap.search.repair import renumbered
from treadle.planner.search.compiled import compiled


@compiled
def rebuilt_order(order: Ints, starts: Ints, successors: Ints, probability: float, draws: NDArray[np.float64]) -> Ints:
    """The order of a dataflow scheduler that takes, with `probability`, a random ready operator, else the ready one
    that is first in `order`.

    `successors[starts[i]:starts[i + 1]]` wait for operator i. `draws` are two random numbers in [0, 1) for each step.
    """
    n = len(order)
    waiting = np.zeros(n, np.int64)
    for after in successors:
        waiting[after] += 1
    ready, place = np.empty(n, np.int64), np.empty(n, np.int64)
    count = 0
    for op in order:
        if waiting[op] == 0:
            ready[count], place[op] = op, count
            count += 1
    done = np.zeros(n, np.bool_)
    result = np.empty_like(order)
    first = 0
    for step in range(n):
        while done[order[first]]:
            first += 1
        chosen = order[first]  # all before it are done, so it is ready
        if draws[2 * step] < probability:
            chosen = ready[int(draws[2 * step + 1] * count)]
        count -= 1
        last = ready[count]
        ready[place[chosen]], place[last] = last, place[chosen]
        done[chosen] = True
        result[step] = chosen
        for at in range(starts[chosen], starts[chosen + 1]):
            after = successors[at]
            waiting[after] -= 1
            if waiting[after] == 0:
                ready[count], place[after] = after, count
                count += 1
    return result


def toggled_classes(classes: Ints, probability: float, rng: Generator) -> Ints:
    """CLS with each step from one size to the next, with `probability`, made where there was none or taken away."""
    steps = np.diff(classes) ^ (rng.random(len(classes) - 1) < probability)
    return np.concatenate(([1], 1 + np.cumsum(steps)))


def moved_classes(classes: Ints, probability: float, rng: Generator) -> Ints:
    """A free CLS with each size, with `probability`, put into any class or into a new one."""
    moved = rng.random(len(classes)) < probability
    return renumbered(np.where(moved, rng.integers(1, int(classes.max()) + 2, len(classes)), classes))


def varied_counts(counts: Ints, probability: float, rng: Generator) -> Ints:
    """CNT with each number, with `probability`, drawn from a Gaussian around it with a deviation of 0.3 of it, at least
    1."""
    moved = rng.random(len(counts)) < probability
    drawn = np.rint(rng.normal(counts, np.maximum(1.0, 0.3 * counts))).astype(np.int64)
    return np.where(moved, np.maximum(drawn, 0), counts)
