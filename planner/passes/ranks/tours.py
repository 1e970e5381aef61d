"""Short closed tours: Lin-Kernighan steps and moved segments, started again from a tour that is kicked in one place.

"An Effective Heuristic Algorithm for the Traveling-Salesman Problem" (Lin, Kernighan), and chained as in "Large-Step
Markov Chains for the Traveling Salesman Problem" (Martin, Otto, Felten).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
NEAR = 8
"""Nearest hosts that a step tries."""
DEPTH = 12
"""Exchanges of a step."""
SEGMENT = 3
"""Most hosts that move together to another place."""
KICK = 30
"""Places of a tour within which a kick exchanges two neighbouring segments."""


class Tours:
    """Tours over symmetric whole `costs` [N, N], N >= 5. `order` is the current one and `length` its length."""

    def __init__(self, costs: Ints, order: Sequence[int], near: Ints | None = None) -> None:
        count = len(costs)
        if near is None:
            away = costs + np.diag(np.full(count, 1 + int(costs.max())))
            near = np.argsort(away, axis=1, kind="stable")[:, : min(NEAR, count - 1)]
        self.near: list[list[int]] = near.tolist()
        self.costs: list[list[int]] = costs.tolist()
        self.restart(order)

    def restart(self, order: Sequence[int]) -> None:
        """Go on from `order`, made as short as steps make it."""
        self.order, self.place = list(order), [0] * len(order)
        for place, host in enumerate(self.order):
            self.place[host] = place
        self.length = sum(self.costs[a][b] for a, b in zip(self.order, self.order[1:] + self.order[:1], strict=True))
        self._shorten(list(self.order))

    def chain(self, kicks: int, generator: Random) -> Iterator[int]:
        """Kick and shorten the tour, and keep what is no longer than before; yield the length after each kick."""
        for _ in range(kicks):
            order, place, length = self.order[:], self.place[:], self.length
            self._shorten(self._kick(generator))
            if self.length > length:
                self.order, self.place, self.length = order, place, length
            yield self.length

    def _shorten(self, hosts: list[int]) -> None:
        """Steps from each of `hosts` and from what they change, until none shortens the tour."""
        queued = {*hosts}
        while hosts:
            host = hosts.pop()
            queued.discard(host)
            changed = self._step(host, 1) or self._step(host, -1) or self._move(host)
            for other in changed:
                if other not in queued:
                    queued.add(other)
                    hosts.append(other)

    def _step(self, first: int, way: int) -> list[int]:
        """Exchange edges one after the other, the next ones at the end that the last left open, and undo all after the
        shortest tour in between. The hosts at the ends of changed edges, none where no tour is shorter."""
        order, place, costs, near, count = self.order, self.place, self.costs, self.near, len(self.order)
        last = order[(place[first] + way) % count]
        gain, best, kept = costs[first][last], 0, 0
        turned: list[tuple[int, int]] = []
        touched = [first, last]
        used: set[tuple[int, int]] = set()
        while len(turned) < DEPTH:
            chosen = end = most = -1
            row = costs[last]
            way = 1 if order[(place[first] + 1) % count] == last else -1
            for other in near[last]:
                left = gain - row[other]
                if left <= 0:
                    break
                before = order[(place[other] - way) % count]
                if other == first or before == last:
                    continue
                value = left + costs[other][before]
                if value > most and (other, before) not in used:
                    chosen, most, end = other, value, before
            if chosen < 0:
                break
            used |= {(last, chosen), (chosen, last)}
            self._turn(first, last, end)
            turned.append((last, end))
            touched += (chosen, end)
            gain, last = most, end
            if gain - costs[last][first] > best:
                best, kept = gain - costs[last][first], len(turned)
        for a, b in reversed(turned[kept:]):
            self._turn(first, b, a)
        self.length -= best
        return touched[: 2 + 2 * kept] if kept else []

    def _turn(self, neighbour: int, a: int, b: int) -> None:
        """Reverse the path from a, next to `neighbour`, to b: then b is next to it."""
        if self.order[(self.place[neighbour] + 1) % len(self.order)] == a:
            self._flip(a, b)
        else:
            self._flip(b, a)

    def _flip(self, a: int, b: int) -> None:
        """Reverse the path from a to b, in the direction of the order; or, if that is shorter, the rest."""
        order, place, count = self.order, self.place, len(self.order)
        first, last = place[a], place[b]
        inside = (last - first) % count + 1
        if 2 * inside > count:
            first, last, inside = (last + 1) % count, (first - 1) % count, count - inside
        if first <= last:
            order[first : last + 1] = part = order[first : last + 1][::-1]
            for at, host in enumerate(part, first):
                place[host] = at
            return
        for _ in range(inside // 2):
            one, two = order[first], order[last]
            order[first], order[last] = two, one
            place[two], place[one] = first, last
            first, last = (first + 1) % count, (last - 1) % count

    def _move(self, host: int) -> list[int]:
        """Move a segment that begins at `host` between two other hosts, if that shortens the tour."""
        order, place, costs, count = self.order, self.place, self.costs, len(self.order)
        at, row = place[host], costs[host]
        for way in (1, -1):
            for size in range(1, min(SEGMENT, count - 3) + 1):
                end = order[(at + way * (size - 1)) % count]
                before, after = order[(at - way) % count], order[(at + way * size) % count]
                spared = row[before] + costs[end][after] - costs[before][after]
                for other in self.near[host]:
                    if row[other] >= spared:
                        break
                    if (place[other] - at) * way % count < size:
                        continue
                    for side in (1, -1):
                        beyond = order[(place[other] + side) % count]
                        if (place[beyond] - at) * way % count < size:
                            continue
                        won = spared + costs[other][beyond] - row[other] - costs[end][beyond]
                        if won > 0:
                            self.length -= won
                            self._turn(before, host, beyond if side == -way else other)
                            self._turn(before, beyond if side == -way else other, after)
                            if side == way:
                                self._turn(other, end, host)
                            return [host, end, before, after, other, beyond]
        return []

    def _kick(self, generator: Random) -> list[int]:
        """Exchange two neighbouring segments: the hosts at their ends."""
        order, costs, count = self.order, self.costs, len(self.order)
        most = min(KICK, (count - 2) // 2)
        at, one, two = generator.randrange(count), generator.randint(1, most), generator.randint(1, most)
        hosts = [order[(at + k) % count] for k in range(one + two + 2)]
        before, first, second, after = hosts[0], hosts[1 : one + 1], hosts[one + 1 : -1], hosts[-1]
        for k, host in enumerate(second + first, at + 1):
            order[k % count] = host
            self.place[host] = k % count
        self.length += costs[before][second[0]] + costs[second[-1]][first[0]] + costs[first[-1]][after]
        self.length -= costs[before][first[0]] + costs[first[-1]][second[0]] + costs[second[-1]][after]
        return [before, first[0], first[-1], second[0], second[-1], after]
