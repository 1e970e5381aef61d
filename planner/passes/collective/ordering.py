"""Stage 2: a total order for every link and port, by list scheduling (TACCL, section 5.5.2).

For each move e: rem(e) is the longest path of latencies from e to the end of its chunk's journey, trav(e) the longest
before it, est(e) the earliest time at which its data and all its resources are free. Among the moves whose data
dependences are placed, repeatedly place the one with the least key:

    earliest    (est, -rem, trav, (dst - src) mod R, chunk, src, dst)
    remaining   (-rem, est, trav, (dst - src) mod R, chunk, src, dst)

Forward as written; backward on the reversed dependences, all orders then reversed. TACCL describes the rounds
twice and differently, so both keys and both directions are run and the best makespan wins. The tie-break
(dst - src) mod R makes simultaneous sends on a switch a permutation. Every order is a linear extension of one
sequence, so orders and dependences never contradict each other.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from treadle.planner.documents.sketch import Order
from treadle.planner.passes.collective.scheduling import Move, MoveTimes, Orders, Resource, longest_path

PORTFOLIO = Order()
"""Both keys in both directions."""


_Tie = tuple[int, ...]
_Rank = tuple[int, int, _Tie]
"""The key of a move: what comes before its est, est, and what comes after, the move's index last."""


@dataclass(slots=True)
class _Group:
    """Ready moves with the same links and ports and the same `lead` of their keys. They wait for the same resources,
    sums apart, so one offer to the heap stands for all of them and a placed move outdates one entry, not one for each.
    """

    lead: int
    uses: tuple[Resource, ...]
    now: list[_Tie] = field(default_factory=list)
    """Heap of those that only wait for `uses`."""
    later: list[tuple[int, _Tie]] = field(default_factory=list)
    """Heap of the others, by when their data and their sums are free."""
    offered: _Rank | None = None

    def least(self, moves: Sequence[Move], free: Mapping[Resource, int]) -> _Rank | None:
        """The least key in the group, None without moves. Its move stands first in `now`, or in `later`."""
        start = max((free.get(resource, 0) for resource in self.uses), default=0)
        while self.now or self.later:
            while self.later and self.later[0][0] <= start:
                heapq.heappush(self.now, heapq.heappop(self.later)[1])
            at, tie = (start, self.now[0]) if self.now else self.later[0]
            true = max((free.get(resource, 0) for resource in moves[tie[-1]].uses if resource[0] == "sum"), default=0)
            if true <= at:
                return self.lead, at, tie
            self.pop()
            heapq.heappush(self.later, (true, tie))
        return None

    def pop(self) -> int:
        """Take out the move of the least key."""
        return heapq.heappop(self.now)[-1] if self.now else heapq.heappop(self.later)[1][-1]


@dataclass(frozen=True)
class Ordering:
    """Orders, the schedule they give without batching, and which heuristic made them."""

    orders: Orders
    schedule: MoveTimes
    name: str


def best_ordering(moves: Sequence[Move], ranks: int, portfolio: Order = PORTFOLIO) -> Ordering:
    """The portfolio's best; the first of equals in the order in which it lists directions and modes."""
    found = []
    for direction in portfolio.directions:
        for key in portfolio.modes:
            orders = list_orders(moves, ranks, key, direction)
            found.append(Ordering(orders, longest_path(moves, orders), f"{key} {direction}"))
    return min(found, key=lambda ordering: ordering.schedule.makespan)


def best_of_halves(moves: Sequence[Move], ranks: int, first: int, portfolio: Order = PORTFOLIO) -> Ordering:
    """Like `best_ordering`, for moves whose first `first` only wait for each other and come before the rest.

    Also tries the best orders of both halves on their own, one after the other on every resource.
    """
    whole = best_ordering(moves, ranks, portfolio)
    early = best_ordering(moves[:first], ranks, portfolio)
    rest = [replace(move, after=tuple(i - first for i in move.after if i >= first)) for move in moves[first:]]
    late = best_ordering(rest, ranks, portfolio)
    orders = {
        resource: (*early.orders.get(resource, ()), *(i + first for i in late.orders.get(resource, ())))
        for resource in sorted(early.orders.keys() | late.orders.keys())
    }
    joined = Ordering(orders, longest_path(moves, orders), f"{early.name}, then {late.name}")
    return min((whole, joined), key=lambda ordering: ordering.schedule.makespan)


def list_orders(moves: Sequence[Move], ranks: int, key: str, direction: str) -> Orders:
    """The order of every resource under one key ("earliest", "remaining") and direction."""
    if direction == "backward":
        turned = list_orders(reversed_moves(moves), ranks, key, "forward")
        return {resource: order[::-1] for resource, order in turned.items()}
    rem, trav = path_lengths(moves)
    followers = _followers(moves)
    ready = [0] * len(moves)
    waits = [len(move.after) for move in moves]
    free: dict[Resource, int] = defaultdict(int)
    orders: dict[Resource, list[int]] = defaultdict(list)

    heap: list[tuple[_Rank, int]] = []
    groups: list[_Group] = []
    number: dict[tuple[int, tuple[Resource, ...]], int] = {}

    def offer(place: int) -> None:
        group = groups[place]
        rank = group.least(moves, free)
        if rank is not None and (group.offered is None or rank < group.offered):
            group.offered = rank
            heapq.heappush(heap, (rank, place))

    def add(index: int) -> None:
        move = moves[index]
        lead = -rem[index] if key == "remaining" else 0
        uses = tuple(resource for resource in move.uses if resource[0] != "sum")
        place = number.setdefault((lead, uses), len(groups))
        if place == len(groups):
            groups.append(_Group(lead, uses))
        tie = (-rem[index], trav[index], (move.dst - move.src) % ranks, move.chunk, move.src, move.dst, index)
        heapq.heappush(groups[place].later, (ready[index], tie))
        offer(place)

    for index, count in enumerate(waits):
        if not count:
            add(index)
    while heap:
        rank, place = heapq.heappop(heap)
        group = groups[place]
        if rank != group.offered:
            continue  # the group made another offer since
        group.offered = None
        if group.least(moves, free) == rank:
            index, start = group.pop(), rank[1]
            done = start + moves[index].lat
            for resource in moves[index].uses:
                free[resource] = start + moves[index].busy(resource)
                orders[resource].append(index)
            for follower in followers[index]:
                ready[follower] = max(ready[follower], done)
                waits[follower] -= 1
                if not waits[follower]:
                    add(follower)
        offer(place)  # ranks only grow, so a late offer still lets the least one come first
    return {resource: tuple(order) for resource, order in sorted(orders.items())}


def reversed_moves(moves: Sequence[Move]) -> tuple[Move, ...]:
    """The moves with every dependence and every link turned around."""
    followers = _followers(moves)
    return tuple(
        replace(move, after=tuple(followers[index]), src=move.dst, dst=move.src) for index, move in enumerate(moves)
    )


def path_lengths(moves: Sequence[Move]) -> tuple[list[int], list[int]]:
    """(rem, trav) in ns of every move: the longest chain of latencies from its send to the end, and before its send."""
    followers = _followers(moves)
    waits = [len(move.after) for move in moves]
    trav = [0] * len(moves)
    sequence = [index for index, count in enumerate(waits) if not count]
    for index in sequence:
        for follower in followers[index]:
            trav[follower] = max(trav[follower], trav[index] + moves[index].lat)
            waits[follower] -= 1
            if not waits[follower]:
                sequence.append(follower)
    rem = [0] * len(moves)
    for index in reversed(sequence):
        rem[index] = moves[index].lat + max((rem[follower] for follower in followers[index]), default=0)
    return rem, trav


def _followers(moves: Sequence[Move]) -> list[list[int]]:
    followers: list[list[int]] = [[] for _ in moves]
    for index, move in enumerate(moves):
        for earlier in move.after:
            followers[earlier].append(index)
    return followers
