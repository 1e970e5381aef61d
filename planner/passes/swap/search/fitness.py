"""The fitness of an individual: the simulated time of its swap plan (SwapAdvisor, section 4.4)."""

from __future__ import annotations

from treadle.planner.passes.swap.arrays import Arrays, Nodes
from treadle.planner.passes.swap.decisions import Allocator
from treadle.planner.passes.swap.evaluate import time_ns
from treadle.planner.passes.swap.layout import Pool, pool_bytes
from treadle.planner.passes.swap.search.individual import Individual
from treadle.planner.passes.swap.spans import plan_spans, scan_spans
from treadle.planner.passes.swap.two_pass import Settings, plan_pool


def pool_of(individual: Individual) -> Pool:
    """The pool of its genes."""
    return Pool(tuple(individual.classes.tolist()), tuple(individual.counts.tolist()))


def planned(
    arrays: Arrays, memory: int, allocator: Allocator, settings: Settings, individual: Individual
) -> Nodes | None:
    """The plan of an individual; None where its pool exceeds `memory` bytes or cannot run some operator."""
    if allocator != "pool":
        return plan_spans(arrays, individual.order, memory, allocator, settings)
    pool = pool_of(individual)
    if pool_bytes(arrays.sizes, pool) > memory:
        return None
    return plan_pool(arrays, individual.order, pool, settings)


def simulated(
    arrays: Arrays, memory: int, allocator: Allocator, settings: Settings, individual: Individual
) -> int | None:
    """Nanoseconds of one iteration; None without a plan, or if the host's memory is too small. With allocator `offset`
    nothing is packed, which would take too long."""
    if allocator == "offset":
        nodes = scan_spans(arrays, individual.order, memory, True, settings)
    else:
        nodes = planned(arrays, memory, allocator, settings, individual)
    return None if nodes is None else time_ns(arrays, nodes)
