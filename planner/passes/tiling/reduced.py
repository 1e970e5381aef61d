"""A tiling graph without the groups that at most two others see: each is replaced by what its best label costs them.

Most groups of a program are such links of chains, so what is left is a fraction of the graph with the same least cost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from treadle.planner.passes.tiling.graph import Costs

Neighbours = list[dict[int, Costs]]
"""`[one][other]` is the table of two groups, labels of `one` first; that of `other` is its transpose."""


@dataclass(frozen=True)
class Eliminated:
    """Costs of a group that was taken out, and its tables with the groups that saw it then."""

    group: int
    own: Costs
    tables: tuple[tuple[int, Costs], ...]

    def best(self, labels: Sequence[int]) -> int:
        """Its first best label next to those of its neighbours."""
        costs = self.own
        for other, table in self.tables:
            costs = costs + table[:, labels[other]]
        return int(np.argmin(costs))


@dataclass(frozen=True)
class Core:
    """What is left of a graph: `groups` by their places there; an edge is (one, other, table) by places here,
    one < other. `taken` is in the order in which groups were taken out."""

    groups: tuple[int, ...]
    own: tuple[Costs, ...]
    edges: tuple[tuple[int, int, Costs], ...]
    taken: tuple[Eliminated, ...]

    def whole(self, labels: Sequence[int]) -> tuple[int, ...]:
        """The labels of all groups of the graph, the best ones around `labels` of the core."""
        found = [0] * (len(self.groups) + len(self.taken))
        for group, label in zip(self.groups, labels, strict=True):
            found[group] = int(label)
        for gone in reversed(self.taken):
            found[gone.group] = gone.best(found)
        return tuple(found)


def reduced(
    own: Sequence[Costs], edges: Sequence[tuple[int, int, Costs]], cap: int, keep: Collection[int] = ()
) -> Core:
    """The core of a graph of costs, with the groups in `keep`; costs above `cap`, which no wanted choice has, become
    `cap`.

    A core is never empty: the last group of each part of the graph stays in it.
    """
    costs = [np.minimum(each, cap) for each in own]
    seen: Neighbours = [{} for _ in own]
    for one, other, table in edges:
        _join(seen, one, other, np.minimum(table, cap), cap)
    taken: list[Eliminated] = []
    left = [True] * len(costs)
    waiting = list(range(len(costs) - 1, -1, -1))
    while waiting:
        group = waiting.pop()
        if left[group] and group not in keep and 1 <= len(seen[group]) <= 2:
            left[group] = False
            taken.append(_take(group, costs, seen, cap))
            waiting.extend(other for other, _ in taken[-1].tables)
    groups = tuple(group for group in range(len(costs)) if left[group])
    place = {group: at for at, group in enumerate(groups)}
    pairs = [(place[one], place[two], seen[one][two]) for one in groups for two in sorted(seen[one]) if one < two]
    return Core(groups, tuple(costs[group] for group in groups), tuple(pairs), tuple(taken))


def _join(seen: Neighbours, one: int, other: int, table: Costs, cap: int) -> None:
    if other in seen[one]:
        table = np.minimum(seen[one][other] + table, cap)
    seen[one][other] = table
    seen[other][one] = table.T


def _take(group: int, costs: list[Costs], seen: Neighbours, cap: int) -> Eliminated:
    """Its best label for each label of its neighbour, or for each pair of labels of both, goes into their costs."""
    gone = Eliminated(group, costs[group], tuple(seen[group].items()))
    (one, table), *rest = gone.tables
    for other, _ in gone.tables:
        del seen[other][group]
    own = table + gone.own[:, None]
    if not rest:
        costs[one] = np.minimum(costs[one] + own.min(axis=0), cap)
    else:
        ((other, second),) = rest
        _join(seen, one, other, np.minimum((own.T[:, :, None] + second[None]).min(axis=1), cap), cap)
    return gone
