"""Orders that are planted into the search: depth first, and by locality.

RNN cells of a layer share one large parameter; an order that runs them together copies it in once (SwapAdvisor, section
5.2), unlike random orders and the framework's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from treadle.planner.passes.swap.arrays import Arrays, Flags, Ints, ints
from treadle.planner.search.compiled import COMPILES, compiled

WEIGHTS = (0.0, 0.3, 0.6, 1.0, 4.0)
"""Weights of bytes by which an operator increases the live tensors, relative to bytes that it has to wait for."""
SHARES = (0.7, 0.5, 0.2)
"""Shares of the memory that planted orders assume; the rest is for copies in flight."""
SLOW = 2000
"""Operators up to which orders by locality are fast enough without compilation."""


def planted_orders(arrays: Arrays, order: Ints, memory: int) -> Iterator[Ints]:
    """`order`, depth first, and orders by locality in `memory` bytes; each order once."""
    seen: set[bytes] = set()
    for found in _orders(arrays, order, memory):
        if found.tobytes() not in seen:
            seen.add(found.tobytes())
            yield found


def _orders(arrays: Arrays, order: Ints, memory: int) -> Iterator[Ints]:
    yield order
    yield depth_first(arrays, order)
    if not COMPILES and len(order) > SLOW:
        return
    for share in SHARES:
        for weight in WEIGHTS:
            for newest in (False, True):
                yield local_order(
                    order,
                    arrays.use_ptr,
                    arrays.made_ptr,
                    arrays.use,
                    arrays.succ_ptr,
                    arrays.succ,
                    arrays.bytes,
                    arrays.kept,
                    int(share * memory),
                    weight,
                    newest,
                )


def depth_first(arrays: Arrays, order: Ints) -> Ints:
    """The order that always takes the operator that became ready last; of several the first in `order`."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    waiting = np.diff(arrays.pred_ptr)
    stack = [int(op) for op in order[::-1] if not waiting[op]]
    result: list[int] = []
    while stack:
        op = stack.pop()
        result.append(op)
        after = arrays.succ[arrays.succ_ptr[op] : arrays.succ_ptr[op + 1]]
        waiting[after] -= 1
        stack += sorted((int(i) for i in after if not waiting[i]), key=lambda i: -int(place[i]))
    return ints(result)


@compiled
def local_order(
    order: Ints,
    use_ptr: Ints,
    made_ptr: Ints,
    use: Ints,
    succ_ptr: Ints,
    succ: Ints,
    size: Ints,
    kept: Flags,
    memory: int,
    weight: float,
    newest: bool,
) -> Ints:
    """The order that always takes the ready operator of least cost: bytes of its inputs that are not on the device,
    plus `weight` times the bytes by which it increases the live tensors; the device holds the `memory` bytes used last.
    If it makes an operator of negative cost ready, as a term of a sum that is added at once, that cost is added.

    Ties go to the first in `order`, or with `newest` to the one that became ready last.
    """
    n, tensors = len(order), len(size)
    waiting = np.zeros(n, np.int64)
    for op in succ:
        waiting[op] += 1
    uses = np.zeros(tensors, np.int64)
    for tensor in use:
        uses[tensor] += 1
    rank = np.empty(n, np.int64)
    ready = np.empty(n, np.int64)
    count = 0
    for at in range(n):
        rank[order[at]] = at
        if waiting[order[at]] == 0:
            ready[count] = order[at]
            count += 1
    here = np.zeros(tensors, np.bool_)
    stamp, mark = np.full(tensors, -1, np.int64), np.full(tensors, -1, np.int64)
    queue = np.empty(len(use), np.int64)  # tensors by time of use, those used again since are stale
    head, tail, held = 0, 0, 0
    result = np.empty_like(order)
    for step in range(n):
        best, best_score, best_rank = 0, np.inf, 0
        for at in range(count):
            op = ready[at]
            for place in range(use_ptr[op], use_ptr[op + 1]):
                mark[use[place]] = op
            score = _cost(op, -1, use_ptr, made_ptr, use, size, kept, here, uses, mark, weight)
            gain = 0.0
            for place in range(succ_ptr[op], succ_ptr[op + 1]):
                if waiting[succ[place]] == 1:
                    then = _cost(succ[place], op, use_ptr, made_ptr, use, size, kept, here, uses, mark, weight)
                    gain = min(gain, then)
            score += gain
            if score < best_score or (score == best_score and rank[op] < best_rank):
                best, best_score, best_rank = at, score, rank[op]
        op = ready[best]
        count -= 1
        ready[best] = ready[count]
        result[step] = op
        for place in range(use_ptr[op], use_ptr[op + 1]):
            tensor = use[place]
            uses[tensor] -= 1
            if not here[tensor]:
                here[tensor] = True
                held += size[tensor]
            if uses[tensor] == 0 and not kept[tensor]:
                here[tensor] = False
                held -= size[tensor]
            stamp[tensor] = tail
            queue[tail] = tensor
            tail += 1
        while held > memory and head < tail:
            tensor = queue[head]
            if here[tensor] and stamp[tensor] == head:
                here[tensor] = False
                held -= size[tensor]
            head += 1
        for place in range(succ_ptr[op], succ_ptr[op + 1]):
            after = succ[place]
            waiting[after] -= 1
            if waiting[after] == 0:
                ready[count] = after
                count += 1
                if newest:
                    rank[after] -= (step + 1) * n
    return result


@compiled
def _cost(
    op: int,
    before: int,
    use_ptr: Ints,
    made_ptr: Ints,
    use: Ints,
    size: Ints,
    kept: Flags,
    here: Flags,
    uses: Ints,
    mark: Ints,
    weight: float,
) -> float:
    """Cost of an operator right after the operator `before` (-1 for none), whose tensors are marked with it."""
    missing, growth = 0, 0
    for place in range(use_ptr[op], use_ptr[op + 1]):
        tensor = use[place]
        near = before >= 0 and mark[tensor] == before
        if place >= made_ptr[op]:
            growth += size[tensor]
        elif not here[tensor] and not near:
            missing += size[tensor]
        if uses[tensor] == 1 + near and not kept[tensor]:
            growth -= size[tensor]
    return missing + weight * growth
