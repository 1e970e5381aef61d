"""The fitness of an individual: the simulated time of its swap plan (SwapAdvisor, section 4.4)."""

from __future__ import annotations

from planner.swap.arrays import Arrays
from planner.swap.evaluate import evaluate
from planner.swap.layout import Pool, pool_bytes
from planner.swap.search.individual import Individual
from planner.swap.two_pass import Settings


def pool_of(individual: Individual) -> Pool:
    """The pool of its genes."""
    return Pool(tuple(individual.classes.tolist()), tuple(individual.counts.tolist()))


def pool_time(arrays: Arrays, memory: int, settings: Settings, individual: Individual) -> int | None:
    """Nanoseconds of one iteration; None where the pool is larger than `memory` bytes or lets some operator not run."""
    pool = pool_of(individual)
    if pool_bytes(arrays.sizes, pool) > memory:
        return None
    return evaluate(arrays, individual.order, pool, settings)
