"""Individuals of the genetic search: an order and a pool; and what all of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from treadle.planner.passes.swap.arrays import Arrays, Ints
from treadle.planner.passes.swap.layout import by_class
from treadle.planner.passes.swap.search.crossover import crossed_order, crossed_pool
from treadle.planner.passes.swap.search.mutation import moved_classes, rebuilt_order, toggled_classes, varied_counts
from treadle.planner.passes.swap.search.repair import (
    averaged,
    extended,
    filled,
    object_bytes,
    renumbered,
    repaired_classes,
    repaired_memory,
)

STRENGTHS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.0)
"""Shares of the mutation probability that a gentle search draws from."""
EMPTY = np.zeros(0, np.int64)


class Individual(NamedTuple):
    """`order` is SCH, `classes` is CLS and `counts` is CNT; the last two are empty where there is no pool."""

    order: Ints
    classes: Ints = EMPTY
    counts: Ints = EMPTY


class Scored(NamedTuple):
    """`time` is the simulated time of an iteration in ns, None where there is no plan."""

    individual: Individual
    time: int | None


class SearchSpace(NamedTuple):
    """What all individuals share. `needs[r, i]` tensors of size i are used by one operator, for distinct rows.

    `time_of` is the fitness of an individual in ns; it can be pickled.
    """

    arrays: Arrays
    time_of: Callable[[Individual], int | None]
    start: Individual
    """Its order is that of the trace. All individuals have its genes where these are not searched."""
    needs: Ints
    memory: int
    """Bytes for all objects."""
    mutation: float = 0.1
    vary_order: bool = True
    vary_pool: bool = True
    free_classes: bool = False
    """CLS may put any size into any class."""
    fill: bool = False
    """No memory is left unused."""
    gentle: bool = False
    """Each child has its own mutation probabilities for order and pool, of `mutation` at most."""


def floors(space: SearchSpace, classes: Ints) -> Ints:
    """The most tensors of each class that one operator uses: with fewer objects there is no plan."""
    return np.asarray(by_class(space.needs, classes).max(axis=0, initial=1), np.int64)


def fitting(space: SearchSpace, classes: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """The pool after repair of its memory; unchanged where even the floors do not fit, so that it has no plan."""
    objects = object_bytes(classes, space.arrays.sizes)
    fit = repaired_memory(counts, objects, floors(space, classes), space.memory)
    if fit is not None and space.fill:
        stock = np.bincount(space.arrays.size[space.arrays.size >= 0], minlength=len(classes))
        most = np.bincount(classes - 1, weights=stock).astype(np.int64)
        fit = filled(fit, objects, most, space.memory)
    return classes, counts if fit is None else fit


def random_individual(space: SearchSpace, rng: Generator) -> Individual:
    """An individual of the first generation: an order by mutation with probability 1, random steps in CLS, random
    counts."""
    individual = space.start
    if space.vary_order:
        individual = individual._replace(order=_rebuilt(space, individual.order, 1.0, rng))
    if space.vary_pool and len(space.arrays.sizes):
        number = len(space.arrays.sizes)
        if space.free_classes:
            classes = renumbered(rng.integers(1, number + 1, number))
        else:
            classes = 1 + np.concatenate(([0], np.cumsum(rng.integers(0, 2, number - 1))))
        share = rng.random(int(classes.max()))
        counts = (share / max(share.sum(), 1e-9) * space.memory / object_bytes(classes, space.arrays.sizes)).astype(
            np.int64
        )
        classes, counts = fitting(space, classes, counts)
        individual = individual._replace(classes=classes, counts=counts)
    return individual


def children(space: SearchSpace, first: Individual, second: Individual, key: tuple[int, ...]) -> list[Individual]:
    """Two orders times two pools, each child mutated. All random numbers come from `key`."""
    rng = np.random.default_rng([*key, 0])
    cut = int(rng.integers(0, len(first.order) + 1))
    orders = [first.order, second.order]
    if space.vary_order:
        orders = [crossed_order(a, b, cut) for a, b in ((first.order, second.order), (second.order, first.order))]
    pools = [first[1:], second[1:]]
    if space.vary_pool:
        cut = int(rng.integers(0, len(space.arrays.sizes) + 1))
        pools = [crossed(space, a, b, cut) for a, b in ((first, second), (second, first))]
    pairs = [(order, pool) for order in orders for pool in pools]
    return [
        _mutated(space, Individual(order, *pool), np.random.default_rng([*key, child]))
        for child, (order, pool) in enumerate(pairs, 1)
    ]


def crossed(space: SearchSpace, first: Individual, second: Individual, cut: int) -> tuple[Ints, Ints]:
    """The pool that takes `cut` sizes of `second` and the rest of `first`, repaired."""
    classes, extension = crossed_pool((first.classes, first.counts), (second.classes, second.counts), cut)
    classes = renumbered(classes) if space.free_classes else repaired_classes(classes)
    return fitting(space, classes, averaged(extension, classes))


def _mutated(space: SearchSpace, individual: Individual, rng: Generator) -> Individual:
    order, classes, counts = individual
    of_order = of_pool = space.mutation
    if space.gentle:
        of_order, of_pool = (space.mutation * STRENGTHS[i] for i in rng.integers(0, len(STRENGTHS), 2))
    if space.vary_order and of_order:
        order = _rebuilt(space, order, of_order, rng)
    if space.vary_pool and of_pool and len(space.arrays.sizes):
        moved = (moved_classes if space.free_classes else toggled_classes)(classes, of_pool, rng)
        counts = averaged(extended(classes, counts), moved)
        classes, counts = fitting(space, moved, varied_counts(counts, of_pool, rng))
    return Individual(order, classes, counts)


def _rebuilt(space: SearchSpace, order: Ints, probability: float, rng: Generator) -> Ints:
    arrays = space.arrays
    return rebuilt_order(order, arrays.succ_ptr, arrays.succ, probability, rng.random(2 * len(order)))
