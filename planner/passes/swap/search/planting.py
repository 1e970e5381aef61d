"""The search space of a problem, and good individuals to start from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import numpy as np

from treadle.planner.passes.swap.arrays import IN, OUT, Arrays, ints
from treadle.planner.passes.swap.decisions import Allocator
from treadle.planner.passes.swap.layout import least_pool, needs
from treadle.planner.passes.swap.search.fitness import pool_of, simulated
from treadle.planner.passes.swap.search.individual import Individual, SearchSpace, fitting
from treadle.planner.passes.swap.search.orders import planted_orders
from treadle.planner.passes.swap.search.pools import planted_pools
from treadle.planner.passes.swap.two_pass import Settings, plan_pool

THRESHOLDS = (2, 0, 1, 3, 4, 6, 8, 12)


def pool_space(
    arrays: Arrays,
    memory: int,
    settings: Settings,
    allocator: Allocator = "pool",
    stop: Callable[[], bool] = lambda: False,
) -> SearchSpace:
    """All orders and pools of a problem with `memory` bytes for tensors. Its start is the order of the trace with the
    best of the pools planted for it, the least pool if none of them has a plan. `stop` ends this once there is a
    plan."""
    order = np.arange(len(arrays.time))
    time_of = partial(simulated, arrays, memory, allocator, settings)
    if allocator != "pool":
        return SearchSpace(arrays, time_of, Individual(order), needs(arrays)[:0], memory, vary_pool=False)
    least = least_pool(arrays)
    start = Individual(order, ints(least.classes), ints(least.counts))
    space = SearchSpace(arrays, time_of, start, np.unique(needs(arrays), axis=0), memory)
    timed: list[tuple[int | None, Individual]] = []
    for one in chain((start,), pools_for(space, start)):
        timed.append((time_of(one), one))
        if stop() and any(time is not None for time, _ in timed):
            break
    best = min((time for time, _ in timed if time is not None), default=None)
    equals = [one for time, one in timed if time is not None and time == best]
    return space._replace(start=min(equals, key=lambda one: copied_bytes(arrays, settings, one), default=start))


def copied_bytes(arrays: Arrays, settings: Settings, individual: Individual) -> int:
    """Bytes that the plan of an individual copies; its pool must have a plan."""
    nodes = plan_pool(arrays, individual.order, pool_of(individual), settings)
    assert nodes is not None
    return int(arrays.bytes[nodes.item[(nodes.kind == IN) | (nodes.kind == OUT)]].sum())


def pools_for(space: SearchSpace, individual: Individual) -> Iterator[Individual]:
    """The individual's order with each of the pools that are planted for it."""
    for classes, counts in planted_pools(space.arrays, individual.order, space.memory):
        classes, counts = fitting(space._replace(fill=True), classes, counts)
        yield individual._replace(classes=classes, counts=counts)


def planted(space: SearchSpace) -> Iterator[Individual]:
    """Individuals of all planted orders and pools, as far as they may vary; the start is the first."""
    yield space.start
    orders = [space.start.order]
    if space.vary_order:
        orders = list(planted_orders(space.arrays, space.start.order, space.memory))
    for order in orders:
        individual = space.start._replace(order=order)
        if space.vary_pool:
            yield from pools_for(space, individual)
        else:
            yield individual


def best_settings(
    arrays: Arrays,
    memory: int,
    allocator: Allocator,
    individual: Individual,
    base: Settings,
    stop: Callable[[], bool] = lambda: False,
) -> Settings:
    """`base` with the best threshold for an individual, of those tried before `stop`."""
    every = [base._replace(threshold=threshold) for threshold in THRESHOLDS]
    times = [None if stop() else simulated(arrays, memory, allocator, settings, individual) for settings in every]
    feasible = [(time, at) for at, time in enumerate(times) if time is not None]
    return every[min(feasible)[1]] if feasible else base
