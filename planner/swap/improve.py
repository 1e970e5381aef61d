"""Local search on a plan: orders, pools and victims, one small change at a time, kept where the simulator gains.

The planner chooses victims in the order of operators and without regard to bandwidth (spec, section 8). Moves here are
drawn at random and evaluated by planning and replaying again, so that every plan on the way is one of the planner's:

* order: an operator goes to another place between what it waits for and what waits for it; a stretch of operators goes
  as a whole;
* pool: an object of one class makes room for objects of others;
* victim (allocators bytes and offset): a tensor that left is held to be needed sooner or later than it is.

Not part of the faithful mode. Deterministic: the same inputs, seed and number of evaluations give the same plan.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from planner.swap.arrays import COMPUTE, IN, Arrays, Ints, Nodes
from planner.swap.layout import Pool, floors, needs, object_bytes
from planner.swap.replay import replay
from planner.swap.spans import SPANS, plan_spans
from planner.swap.two_pass import Settings, plan_pool

LONGEST = 16
"""Operators of a stretch that moves as a whole, at most."""


class Improved(NamedTuple):
    """A plan with all that it was planned from; `bias` as in planner.swap.spans, None with allocator pool."""

    time_ns: int
    order: Ints
    pool: Pool | None
    bias: Ints | None
    nodes: Nodes


def improve(
    arrays: Arrays,
    room: int,
    allocator: Literal["pool", "bytes", "offset"],
    order: Ints,
    pool: Pool | None = None,
    settings: Settings = SPANS,
    *,
    evaluations: int = 1000,
    seed: int = 0,
    least_ns: int = 0,
    vary_order: bool = True,
    vary_pool: bool = True,
    stop: Callable[[], bool] = lambda: False,
) -> Improved | None:
    """The best plan after `evaluations` more of them, from one order and pool; None where these have no plan.

    room: bytes for tensors. Ends early at `least_ns`, which nothing goes below.
    """
    rng = random.Random(seed)

    def plan(order: Ints, pool: Pool | None, bias: Ints | None) -> Improved | None:
        if pool is not None and allocator == "pool":
            nodes = plan_pool(arrays, order, pool, settings)
        elif allocator != "pool":
            nodes = plan_spans(arrays, order, room, allocator, settings, bias)
        else:
            nodes = None
        return None if nodes is None else Improved(replay(arrays, nodes).makespan_ns, order, pool, bias, nodes)

    best = plan(np.asarray(order, np.int64), pool, None if allocator == "pool" else np.zeros(len(arrays.use), np.int64))
    if best is None:
        return None
    moves: list[Callable[[Improved], Improved | None]] = []
    if vary_order and len(order) > 1:
        moves.append(lambda now: plan(moved(arrays, now.order, rng), now.pool, now.bias))
    if allocator == "pool" and vary_pool and pool is not None and len(pool.counts) > 1:
        needed = needs(arrays)
        moves.append(lambda now: plan(now.order, traded(arrays, needed, now.pool, room, rng), now.bias))
    if allocator != "pool":
        moves.append(lambda now: plan(now.order, None, biased(arrays, now, rng)))
    for _ in range(evaluations if moves else 0):
        if best.time_ns <= least_ns or stop():
            break
        found = rng.choice(moves)(best)
        if found is not None and found.time_ns <= best.time_ns:  # plateaus are walked
            best = found
    return best


def moved(arrays: Arrays, order: Ints, rng: random.Random) -> Ints:
    """A stretch of 1 to LONGEST operators at another place, as far as what it waits for and what waits for it let it
    go."""
    n = len(order)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    size = rng.choice((1, 1, rng.randint(1, min(LONGEST, n - 1))))
    first = rng.randrange(n - size + 1)
    ops = order[first : first + size]
    inside = set(ops.tolist())
    lowest, highest = 0, n - size
    for op in ops.tolist():
        for other in arrays.pred[arrays.pred_ptr[op] : arrays.pred_ptr[op + 1]].tolist():
            if other not in inside:
                lowest = max(lowest, int(place[other]) + 1)
        for other in arrays.succ[arrays.succ_ptr[op] : arrays.succ_ptr[op + 1]].tolist():
            if other not in inside:
                highest = min(highest, int(place[other]) - size)
    target = rng.randint(lowest, highest)
    rest = np.concatenate([order[:first], order[first + size :]])
    return np.concatenate([rest[:target], ops, rest[target:]])


def traded(arrays: Arrays, needed: Ints, pool: Pool | None, room: int, rng: random.Random) -> Pool:
    """One to three objects of a class given up, and what they leave filled with objects of another."""
    assert pool is not None
    size, least = object_bytes(arrays.sizes, pool.classes), floors(needed, pool.classes)
    counts = list(pool.counts)
    giver, taker = rng.sample(range(len(counts)), 2)
    counts[giver] = max(least[giver], counts[giver] - rng.randint(1, 3))
    left = room - sum(count * each for count, each in zip(counts, size, strict=True))
    counts[taker] += max(0, left // size[taker])
    return Pool(pool.classes, tuple(counts))


def biased(arrays: Arrays, now: Improved, rng: random.Random) -> Ints:
    """Another next use for the tensor of some departure, as of the use after which it left, or of any use."""
    n = len(now.order)
    assert now.bias is not None
    bias = now.bias.copy()
    if not len(bias):
        return bias
    leaving = np.flatnonzero((now.nodes.kind != COMPUTE) & (now.nodes.kind != IN))
    use = rng.randrange(len(bias))
    if len(leaving) and rng.random() < 0.8:
        node = int(leaving[rng.randrange(len(leaving))])
        place = np.empty(n, np.int64)
        place[now.order] = np.arange(n)
        uses = np.flatnonzero(arrays.use == now.nodes.item[node])
        ops = np.searchsorted(arrays.use_ptr, uses, side="right") - 1
        before = uses[place[ops] < now.nodes.serves[node]]
        if len(before):
            use = int(before[np.argmax(place[ops[place[ops] < now.nodes.serves[node]]])])
    bias[use] = 0 if bias[use] and rng.random() < 0.3 else rng.choice((-1, 1)) * rng.randint(1, 2 * n)
    return bias
