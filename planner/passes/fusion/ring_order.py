"""In which order a ring consumes chunks, and what producing them in another order costs (CoCoNet, section 5.3).

A ring is given as the next rank of each rank, once per channel: communicators differ, so the order is derived and
never assumed. Chunks bear the number of the rank that sends them first; the rank before it completes their sum.

    order of rank r      r, prev(r), prev(prev(r)), ..., next(r)

The model counts in units of time: a GEMM makes one chunk per unit, a hop takes one unit, sums are free. Rank r sends
its s-th chunk once it has made it, has sent the one before and has the partial sum of it from its predecessor.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.planner.errors import InputError

Ring = tuple[int, ...]
"""The next rank of each rank."""


def ring(ranks: int, step: int = 1) -> Ring:
    """Rank r sends to r + step; `step` is -1 for the opposite direction. Raises InputError when that is no ring."""
    return checked(tuple((rank + step) % ranks for rank in range(ranks)))


def checked(following: Sequence[int]) -> Ring:
    """The ring, known to visit every rank once. Raises InputError otherwise."""
    seen, rank = [], 0
    while rank not in seen and 0 <= rank < len(following):
        seen.append(rank)
        rank = following[rank]
    if not following or rank != 0 or len(seen) != len(following):
        raise InputError(f"found next ranks {list(following)}, expected a ring through ranks 0 to {len(following) - 1}")
    return tuple(following)


def previous(following: Ring) -> Ring:
    """The rank before each rank."""
    before = [0] * len(following)
    for rank, after in enumerate(following):
        before[after] = rank
    return tuple(before)


def consumption(following: Ring) -> tuple[tuple[int, ...], ...]:
    """By rank: the chunks in the order in which the ring takes them, numbered by the rank that sends them first."""
    before, orders = previous(following), []
    for rank in range(len(following)):
        order = [rank]
        while len(order) < len(following):
            order.append(before[order[-1]])
        orders.append(tuple(order))
    return tuple(orders)


def consumption_by_owner(following: Ring) -> tuple[tuple[int, ...], ...]:
    """The same order with chunks numbered by the rank that completes them: its own chunk comes last at each rank."""
    before = previous(following)
    return tuple(tuple(before[chunk] for chunk in order) for order in consumption(following))


def steps(rings: Sequence[Ring], rank: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """What a GEMM on `rank` has to make for all channels: by step (channel, owner of the chunk) of each channel."""
    orders = [consumption_by_owner(following)[rank] for following in rings]
    return tuple(tuple(enumerate(step)) for step in zip(*orders, strict=True))


def finish(following: Ring, produced: Sequence[Sequence[int]] | None) -> int:
    """Units until GEMM and allreduce have ended on every rank.

    `produced` is by rank the order in which its GEMM makes the chunks; None: nothing is sent before all are made.
    """
    n = len(following)
    taken, before = consumption(following), previous(following)
    if produced is None:
        made = [[n] * n for _ in range(n)]
    else:
        made = [[produced[rank].index(chunk) + 1 for chunk in range(n)] for rank in range(n)]
    sent = [0] * n
    for step in range(n - 1):
        arrived = sent if step else [0] * n
        sent = [max(made[rank][taken[rank][step]], sent[rank], arrived[before[rank]]) + 1 for rank in range(n)]
    whole = [max(made[rank][taken[rank][-1]], sent[rank], sent[before[rank]]) for rank in range(n)]
    for step in range(n - 1):
        arrived = sent if step else whole
        sent = [max(sent[rank], arrived[before[rank]] if step else whole[rank]) + 1 for rank in range(n)]
    return max(*sent, *whole)
