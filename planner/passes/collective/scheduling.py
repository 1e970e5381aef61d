"""Exact times without a solver: the longest path through data dependences and fixed orders.

A move is one chunk over one link. Moves that share a resource (link, port, or the sum a reduction adds to) run one
after the other in a given order; moves batched together start together and last alpha + beta * (their number). With
routes, orders and batches fixed, starting everything as soon as possible is optimal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Resource = tuple[str, int, int]
Place = tuple[str, int]
"""(buffer, index): input, output or scratch."""
Orders = dict[Resource, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Move:
    """`after` are indices of moves that must have arrived before this one is sent; costs are ns."""

    chunk: int
    src: int
    dst: int
    alpha: int
    beta: int
    reduce: bool
    after: tuple[int, ...]
    uses: tuple[Resource, ...]
    source: Place | None = None
    """Where lowering can put the chunk at the sender, None where its neighbours there are not known."""
    target: Place | None = None
    """Where it is put at the receiver; scratch indices only say that chunks of one message lie side by side."""
    pipelined: bool = False
    """Links and ports are free again beta after the send; sums only once the chunk has arrived."""
    own: tuple[tuple[Resource, int], ...] = ()
    """The ns for which those of `uses` are held that have a beta of their own."""

    @property
    def lat(self) -> int:
        return self.alpha + self.beta

    def busy(self, resource: Resource, size: int = 1) -> int:
        """ns for which a message of `size` such moves holds `resource`."""
        for other, ns in self.own:
            if other == resource:
                return ns * size
        return self.beta * size + (0 if self.pipelined and resource[0] != "sum" else self.alpha)


@dataclass(frozen=True)
class MoveTimes:
    """ns by move; `batch` is the first move (in link order) of the message that each move travels in."""

    send: tuple[int, ...]
    arrive: tuple[int, ...]
    batch: tuple[int, ...]

    @property
    def makespan(self) -> int:
        return max(self.arrive, default=0)


def longest_path(moves: Sequence[Move], orders: Orders, batch: Sequence[int] | None = None) -> MoveTimes:
    """The earliest times under `orders` with the given batches (none: every move alone). O(moves x resources).

    Orders, dependences and batches must not contradict each other.
    """
    of = list(range(len(moves))) if batch is None else list(batch)
    size = [0] * len(moves)
    for leader in of:
        size[leader] += 1
    after: list[dict[int, int]] = [{} for _ in moves]
    """By message: the messages that wait for it, and for how long after its send."""
    waiting: list[set[int]] = [set() for _ in moves]

    def arc(first: int, then: int, delay: int) -> None:
        one, other = of[first], of[then]
        if one != other:
            after[one][other] = max(delay, after[one].get(other, 0))
            waiting[other].add(one)

    for index, move in enumerate(moves):
        for earlier in move.after:
            arc(earlier, index, moves[earlier].alpha + moves[earlier].beta * size[of[earlier]])
    for resource, order in orders.items():
        for earlier, later in pairwise(order):
            arc(earlier, later, moves[earlier].busy(resource, size[of[earlier]]))
    left = [len(before) for before in waiting]
    send = [0] * len(moves)
    ready = deque(index for index, leader in enumerate(of) if leader == index and not left[index])
    seen = 0
    while ready:
        leader = ready.popleft()
        seen += 1
        for later, delay in after[leader].items():
            send[later] = max(send[later], send[leader] + delay)
            left[later] -= 1
            if not left[later]:
                ready.append(later)
    if seen != sum(count > 0 for count in size):
        raise ValueError("orders, dependences and batches contradict each other")
    sends = tuple(send[leader] for leader in of)
    arrivals = tuple(
        at + moves[leader].alpha + moves[leader].beta * size[leader] for at, leader in zip(sends, of, strict=True)
    )
    return MoveTimes(sends, arrivals, tuple(of))
