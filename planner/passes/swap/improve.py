"""Local search on a plan: small random changes of order, pool, victims and initial residents, kept if the simulated
time does not rise.

The planner of SwapAdvisor (section 4.3) chooses victims by their next use, regardless of bandwidth. Moves here are
mostly near an operator that waits. They change the planner's inputs, and it plans again:

* order: a stretch of operators moves to another place between its predecessors and successors;
* pool: objects of one class are exchanged for objects of another;
* victim: the next use of an evicted tensor counts as sooner than it is, that of a resident one as later;
* initial (allocator pool): a few persistent tensors are added to the initial residents or removed. A small one that
  stays saves a copy, whose time is mostly its fixed cost.

Not part of the faithful mode. Deterministic: the same inputs, seed and number of evaluations give the same plan.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from treadle.planner.passes.swap.arrays import COMPUTE, DROP, OUT, Arrays, Ints, Nodes
from treadle.planner.passes.swap.evaluate import time_ns
from treadle.planner.passes.swap.layout import Pool, floors, needs, object_bytes
from treadle.planner.passes.swap.replay import replay
from treadle.planner.passes.swap.spans import SPANS, scan_spans
from treadle.planner.passes.swap.two_pass import Settings, plan_pool

LONGEST = 16
"""Operators of a stretch that moves, at most."""
NEAR = 0.7
"""Share of the moves of victims that begin at an operator that waits."""
UNDO = 0.3
"""Share of the moves at a use that has a bias that take it back."""
BEFORE_OUT, BEFORE_USE = 8, 20
"""Mean distance of a move before a wait, in departures and in operators."""


class Improved(NamedTuple):
    """A plan with the inputs of its planner: `bias` and `initial` as in treadle.planner.passes.swap.two_pass; `pool`
    and `initial` are None with allocators bytes and offset."""

    time_ns: int
    order: Ints
    pool: Pool | None
    bias: Ints
    initial: Ints | None
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
    patience: int | None = None,
    seed: int = 0,
    least_ns: int = 0,
    vary_order: bool = True,
    vary_pool: bool = True,
    stop: Callable[[], bool] = lambda: False,
    on_better: Callable[[Improved], None] = lambda found: None,
) -> Improved | None:
    """The best plan after `evaluations` more of them, from one order and pool; None where these have no plan.

    room: bytes for tensors. With allocator offset addresses are assigned during the scan; packing would take too long
    here. Ends early at the lower bound `least_ns`, and after `patience` evaluations without a gain.
    """
    rng = random.Random(seed)

    def plan(order: Ints, pool: Pool | None, bias: Ints, initial: Ints | None = None) -> Improved | None:
        if allocator != "pool":
            nodes = scan_spans(arrays, order, room, allocator == "offset", settings, bias)
        else:
            nodes = None if pool is None else plan_pool(arrays, order, pool, settings, bias, initial)
        time = None if nodes is None else time_ns(arrays, nodes)
        if nodes is None or time is None:
            return None
        return Improved(time, order, pool, bias, np.sort(nodes.initial) if allocator == "pool" else None, nodes)

    best = plan(np.asarray(order, np.int64), pool, np.zeros(len(arrays.use), np.int64))
    if best is None:
        return None
    look = _Look(arrays, best)
    persistent = np.flatnonzero(arrays.persistent & (arrays.bytes > 0))
    moves: list[Callable[[Improved], Improved | None]] = [
        lambda now: plan(now.order, now.pool, stayed(arrays, now, look, rng), now.initial),
        lambda now: plan(now.order, now.pool, left(arrays, now, look, rng), now.initial),
    ]
    if vary_order and len(order) > 1:
        moves.append(lambda now: plan(moved(arrays, now.order, rng), now.pool, now.bias, now.initial))
        moves.append(lambda now: plan(moved(arrays, now.order, rng), now.pool, now.bias))
    if allocator == "pool" and vary_pool and pool is not None and len(pool.counts) > 1:
        needed = needs(arrays)
        moves.append(lambda now: plan(now.order, traded(arrays, needed, now.pool, room, rng), now.bias, now.initial))
    if allocator == "pool" and len(persistent):
        moves.append(lambda now: plan(now.order, now.pool, now.bias, toggled(now.initial, persistent, rng)))
    since = 0
    for _ in range(evaluations if len(arrays.use) else 0):
        if best.time_ns <= least_ns or stop() or since == patience:
            break
        found = rng.choice(moves)(best)
        since += 1
        if found is None or found.time_ns > best.time_ns:
            continue
        if found.time_ns < best.time_ns:
            since = 0
            on_better(found)
        best, look = found, _Look(arrays, found)  # plateaus are walked
    return best


class _Look:
    """Where a plan waits, computed on first use."""

    def __init__(self, arrays: Arrays, now: Improved) -> None:
        self.arrays, self.now = arrays, now
        self.waits: Ints | None = None

    def place(self, rng: random.Random) -> int:
        """A random place in the order, in NEAR of all cases that of a waiting operator, in proportion to its wait."""
        if self.waits is None:
            ran = replay(self.arrays, self.now.nodes)
            computes = self.now.nodes.kind == COMPUTE
            gaps = ran.start[computes] - np.concatenate(([0], ran.end[computes][:-1]))
            self.waits = np.cumsum(gaps)
        whole = int(self.waits[-1])
        if not whole or rng.random() >= NEAR:
            return rng.randrange(len(self.waits))
        return int(np.searchsorted(self.waits, rng.randrange(whole), side="right"))


def moved(arrays: Arrays, order: Ints, rng: random.Random) -> Ints:
    """The order with a stretch of 1 to LONGEST operators moved between its predecessors and successors."""
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
    """The pool with one to three objects of a class exchanged for objects of another."""
    assert pool is not None
    size, least = object_bytes(arrays.sizes, pool.classes), floors(needed, pool.classes)
    counts = list(pool.counts)
    giver, taker = rng.sample(range(len(counts)), 2)
    counts[giver] = max(least[giver], counts[giver] - rng.randint(1, 3))
    left = room - sum(count * each for count, each in zip(counts, size, strict=True))
    counts[taker] += max(0, left // size[taker])
    return Pool(pool.classes, tuple(counts))


def stayed(arrays: Arrays, now: Improved, look: _Look, rng: random.Random) -> Ints:
    """The bias with a sooner next use of an evicted tensor, from the use after which it left."""
    n, nodes, place = len(now.order), now.nodes, look.place(rng)
    leaving = np.flatnonzero((nodes.kind == OUT) | (nodes.kind == DROP))
    if not len(leaving):
        return now.bias
    before = int(np.searchsorted(nodes.serves[leaving], place, side="right")) - 1
    node = int(leaving[max(0, before - int(rng.expovariate(1 / BEFORE_OUT)))])
    uses = np.flatnonzero(arrays.use == nodes.item[node])
    places = np.argsort(now.order)[np.searchsorted(arrays.use_ptr, uses, side="right") - 1]
    earlier = places < nodes.serves[node]
    if not earlier.any():  # an initial resident
        return now.bias
    use = int(uses[earlier][np.argmax(places[earlier])])
    return _changed(now.bias, use, -rng.choice((2 * n, n // 4, n // 16, rng.randint(1, n))), rng)


def left(arrays: Arrays, now: Improved, look: _Look, rng: random.Random) -> Ints:
    """The bias with a later next use of a tensor of an operator before one that waits."""
    n = len(now.order)
    op = now.order[max(0, look.place(rng) - int(rng.expovariate(1 / BEFORE_USE)))]
    first, end = int(arrays.use_ptr[op]), int(arrays.use_ptr[op + 1])
    if first == end:
        return now.bias
    return _changed(now.bias, rng.randrange(first, end), rng.choice((2 * n, n // 4, n // 16, rng.randint(1, n))), rng)


def _changed(bias: Ints, use: int, amount: int, rng: random.Random) -> Ints:
    bias = bias.copy()
    bias[use] = 0 if bias[use] and rng.random() < UNDO else amount
    return bias


def toggled(initial: Ints | None, persistent: Ints, rng: random.Random) -> Ints:
    """The initial residents with one to four persistent tensors added or removed."""
    assert initial is not None
    some = rng.sample(persistent.tolist(), min(len(persistent), rng.choice((1, 1, 2, 4))))
    return np.setxor1d(initial, some)
