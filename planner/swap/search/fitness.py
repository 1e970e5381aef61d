"""The fitness of an individual: the simulated time of its swap plan (SwapAdvisor, section 4.4)."""

from __future__ import annotations

from planner.swap.arrays import Arrays, Nodes
from planner.swap.decisions import Allocator
from planner.swap.evaluate import time_ns
from planner.swap.layout import Pool, pool_bytes
from planner.swap.replay import replay
from planner.swap.search.individual import Individual
from planner.swap.spans import plan_spans, scan_spans
from planner.swap.two_pass import Settings, plan_pool


def pool_of(individual: Individual) -> Pool:
    """The pool of its genes."""
    return Pool(tuple(individual.classes.tolist()), tuple(individual.counts.tolist()))


def planned(
    arrays: Arrays, memory: int, allocator: Allocator, settings: Settings, individual: Individual
) -> Nodes | None:
    """The plan of an individual; None where its pool is larger than `memory` bytes or lets some operator not run."""
    if allocator != "pool":
        return plan_spans(arrays, individual.order, memory, allocator, settings)
    pool = pool_of(individual)
    if pool_bytes(arrays.sizes, pool) > memory:
        return None
    return plan_pool(arrays, individual.order, pool, settings)


def simulated(
    arrays: Arrays, memory: int, allocator: Allocator, settings: Settings, individual: Individual
) -> int | None:
    """Nanoseconds of one iteration; None where there is no plan, or none that the host's memory allows. With allocator
    `offset` nothing is packed, which takes too long for a search (see `ranking`)."""
    if allocator == "offset":
        nodes = scan_spans(arrays, individual.order, memory, True, settings)
    else:
        nodes = planned(arrays, memory, allocator, settings, individual)
    return None if nodes is None else time_ns(arrays, nodes)


def ranking(arrays: Arrays, memory: int, allocator: Allocator, settings: Settings, individual: Individual) -> Allocator:
    """The allocator by which a search compares plans. For `offset` that is `bytes` where of one individual the packed
    plan is no slower than the one that is given addresses on the way: what is gained before packing is gained after."""
    if allocator != "offset":
        return allocator
    best = planned(arrays, memory, allocator, settings, individual)
    on_the_way = simulated(arrays, memory, allocator, settings, individual)
    if on_the_way is None or (best is not None and replay(arrays, best).makespan_ns < on_the_way):
        return "bytes"
    return "offset"
