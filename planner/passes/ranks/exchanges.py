"""Exchanges of two hosts in a pattern of rounds, priced many at a time by the groups that they change.

In a round every group of places costs its dearest pair, and the round costs its dearest group. An exchange changes two
groups at most, so the dearest of the others is one of the three dearest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.ranks.cost import OrderCosts

Ints = NDArray[np.int64]
DEAREST = 3


class Exchanges:
    """An order of hosts, the cost of each group in each round [R, G], and what exchanges would make of them.

    Places that are in no group of a round are a group of their own there, which costs nothing.
    """

    def __init__(self, costs: OrderCosts, order: Sequence[int]) -> None:
        hops, count = costs.hops, len(order)
        assert hops.starts is not None
        ends = [*hops.starts[1:].tolist(), len(hops.src)]
        rounds = [slice(first, last) for first, last in zip(hops.starts.tolist(), ends, strict=True)]
        groups = [_groups(hops.src[part], hops.dst[part], count) for part in rounds]
        widest = max(len(group) for each in groups for group in each)
        self.tables = np.stack([costs.matrix(part.start) for part in rounds])
        self.group = np.empty((len(rounds), count), dtype=np.int64)
        """By round and place."""
        self.others = np.broadcast_to(np.arange(count)[:, None], (len(rounds), count, max(1, widest - 1))).copy()
        """Places of the same group, padded with the place itself [R, N, S]."""
        for number, each in enumerate(groups):
            for at, group in enumerate(each):
                self.group[number, group] = at
                for place in group:
                    others = [other for other in group if other != place]
                    self.others[number, place, : len(others)] = others
        self.paired = widest == 2
        self.sizes = max(len(each) for each in groups)
        self.restart(order)

    def restart(self, order: Sequence[int]) -> None:
        self.order = np.array(order, dtype=np.int64)
        self._update()

    def _update(self) -> None:
        rounds = len(self.group)
        numbers = np.arange(rounds)[:, None, None]
        hosts = self.order[self.others]
        self.member = self.tables[numbers, self.order[None, :, None], hosts].max(axis=2)
        """The dearest pair of each place [R, N]."""
        self.values = np.zeros((rounds, self.sizes), dtype=np.int64)
        np.maximum.at(self.values, (np.arange(rounds)[:, None], self.group), self.member)
        most = min(DEAREST, self.sizes)
        self.dearest = np.argpartition(-self.values, most - 1, axis=1)[:, :most]
        highest = np.take_along_axis(self.values, self.dearest, axis=1)
        by_value = np.argsort(-highest, axis=1, kind="stable")
        self.dearest = np.take_along_axis(self.dearest, by_value, axis=1)
        self.highest = np.take_along_axis(highest, by_value, axis=1)
        self.totals = self.values.sum(axis=1)

    def priced(self, a: Ints, b: Ints) -> tuple[Ints, Ints]:
        """The cost of each round, and the sum of its groups, after an exchange of the hosts at places a and b [B]: both
        [R, B]."""
        numbers = np.arange(len(self.group))[:, None]
        group_a, group_b = self.group[:, a], self.group[:, b]
        same = group_a == group_b
        new_a, new_b = self._without(a, self.order[b]), self._without(b, self.order[a])
        old_a, old_b = self.values[numbers, group_a], self.values[numbers, group_b]
        new_a, new_b = np.where(same, old_a, new_a), np.where(same, old_b, new_b)
        left = np.zeros(group_a.shape, dtype=np.int64)
        for rank in range(self.dearest.shape[1] - 1, -1, -1):
            dearest = self.dearest[:, rank : rank + 1]
            stays = (dearest != group_a) & (dearest != group_b)
            left = np.where(stays, self.highest[:, rank : rank + 1], left)
        change = np.where(same, 0, new_a + new_b - old_a - old_b)
        return np.maximum(left, np.maximum(new_a, new_b)), self.totals[:, None] + change

    def _without(self, places: Ints, hosts: Ints) -> Ints:
        """What the groups of `places` [B] cost with `hosts` [B] there instead, [R, B]."""
        numbers = np.arange(len(self.group))[:, None, None]
        others = self.others[:, places]
        alone = others == places[:, None]
        pairs = self.tables[numbers, hosts[None, :, None], self.order[others]]
        found: Ints = np.where(alone, 0, pairs).max(axis=2)
        if self.paired:
            return found
        rest = self.tables[numbers[..., None], self.order[others][..., :, None], self.order[others][..., None, :]]
        known = alone[..., :, None] | alone[..., None, :]
        kept: Ints = np.where(known, 0, rest).max(axis=(2, 3))
        return np.maximum(found, kept)

    def exchange(self, a: int, b: int) -> None:
        """Exchange the hosts at places a and b."""
        self.order[[a, b]] = self.order[[b, a]]
        self._update()


def _groups(src: Ints, dst: Ints, count: int) -> list[list[int]]:
    """Places that pairs connect, and the other places one by one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(src)), (src, dst)), shape=(count, count))
    number, labels = connected_components(links, directed=False)
    return [np.flatnonzero(labels == label).tolist() for label in range(number)]
