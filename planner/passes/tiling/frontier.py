"""The groups of a tiling graph decided one by one, with all states of their frontier.

Where the bound of the messages leaves a gap, this closes it. The frontier are decided groups with undecided neighbours;
of choices that agree on it only the cheapest can be part of the best. After a pass back of dual.py, what a choice costs
is the bound plus the excess of every group and edge, none of them negative, so states whose excess is beyond the gap
are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np

from treadle.planner.passes.tiling.dual import FlatGraph
from treadle.planner.passes.tiling.graph import Costs
from treadle.planner.search.clock import Expired

STATES = 4096
"""Most states that are kept; of more, those of the least excess."""
KEYS = 2**60


@dataclass(frozen=True)
class Explored:
    """The cheapest choice within the limit, if any is left. No choice but it has an excess below `least`."""

    choice: Costs | None
    least: int


def frontier_order(edges: Sequence[tuple[int, int, Costs]], groups: int) -> list[int]:
    """Groups so that few decided ones have undecided neighbours: next is always the one that adds the fewest."""
    seen: list[set[int]] = [set() for _ in range(groups)]
    for one, other, _ in edges:
        seen[one].add(other)
        seen[other].add(one)
    order: list[int] = []
    known: set[int] = set()
    left = [len(each) for each in seen]  # neighbours that are not decided
    for start in sorted(range(groups), key=lambda group: (len(seen[group]), group)):
        waiting = [(0, 0, start)]
        while waiting:
            added, _, group = heappop(waiting)
            if group in known:
                continue
            if added != (now := _added(group, seen, left, known)):
                heappush(waiting, (now, len(order), group))
                continue
            known.add(group)
            order.append(group)
            for other in sorted(seen[group]):
                left[other] -= 1
            for other in sorted(seen[group] | {far for near in seen[group] & known for far in seen[near]}):
                if other not in known:
                    heappush(waiting, (_added(other, seen, left, known), len(order), other))
    return order


def _added(group: int, seen: Sequence[set[int]], left: Sequence[int], known: set[int]) -> int:
    """How many more groups are on the frontier once `group` is decided."""
    return (left[group] > 0) - sum(other in known and left[other] == 1 for other in seen[group])


def explored(graph: FlatGraph, limit: int, expired: Expired) -> Explored:
    """The choice of the least excess, at most `limit`; `graph` after a pass back."""
    excess = Excess(graph)
    places: list[int] = []
    states = np.zeros((1, 0), dtype=np.int64)
    costs = np.zeros(1, dtype=np.int64)
    trace: list[tuple[Any, Any]] = []
    least = limit + 1
    for group in range(len(graph.first) - 1):
        if expired():
            return Explored(None, 0)
        total = costs[:, None] + excess.own(group)
        for column, other in enumerate(places):
            if (table := excess.between(other, group)) is not None:
                total = total + table[states[:, column]]
        before, label = np.nonzero(total <= limit)
        costs = total[before, label]
        places = [*places, group]
        states = np.column_stack([states[before], label])
        stay = [column for column, place in enumerate(places) if excess.last(place) > group]
        places, states = [places[column] for column in stay], states[:, stay]
        kept = _cheapest(states, costs, [excess.labels(place) for place in places])
        if len(kept) > STATES:
            kept = kept[np.argsort(costs[kept], kind="stable")]
            least, kept = min(least, int(costs[kept[STATES]])), kept[:STATES]
        states, costs = states[kept], costs[kept]
        trace.append((before[kept], label[kept]))
    if not len(costs):
        return Explored(None, least)
    choice, state = np.zeros(len(trace), dtype=np.int64), int(np.argmin(costs))
    best = int(costs[state])
    for group in range(len(trace) - 1, -1, -1):
        before, label = trace[group]
        choice[group], state = label[state], before[state]
    return Explored(choice, min(least, best))


def _cheapest(states: Costs, costs: Costs, labels: Sequence[int]) -> Any:
    """The first cheapest of the states that agree in all columns."""
    keys, size = np.zeros(len(costs), dtype=np.int64), 1
    for column, count in enumerate(labels):
        if size * count > KEYS:
            keys = np.unique(keys, return_inverse=True)[1].astype(np.int64)
            size = len(keys) + 1
        keys, size = keys * count + states[:, column], size * count
    order = np.lexsort((costs, keys))
    first = np.ones(len(order), dtype=bool)
    first[1:] = keys[order[1:]] != keys[order[:-1]]
    return np.sort(order[first])


class Excess:
    """What each label and each pair of labels costs beyond the bound of a pass back, as dual.py's argument has it."""

    def __init__(self, graph: FlatGraph) -> None:
        self.graph = graph
        self.arcs = {(int(graph.target[arc ^ 1]), int(graph.target[arc])): int(arc) for arc in range(len(graph.target))}
        self.ends = [max([group, *map(int, self._targets(group))]) for group in range(len(graph.first) - 1)]

    def labels(self, group: int) -> int:
        return int(self.graph.first[group + 1] - self.graph.first[group])

    def last(self, group: int) -> int:
        """Its last neighbour, or itself."""
        return self.ends[group]

    def own(self, group: int) -> Costs:
        total, shared = self._costs(group)
        return total - shared * self._behind(group)

    def between(self, one: int, other: int) -> Costs | None:
        """One row for each label of `one`, which is before `other`; None where no edge joins them."""
        graph, arc = self.graph, self.arcs.get((one, other))
        if arc is None:
            return None
        table = graph.tables[graph.table[arc] : graph.table[arc + 1]].reshape(self.labels(one), self.labels(other))
        sent = graph.messages[graph.message[arc] : graph.message[arc + 1]]
        received = graph.messages[graph.message[arc ^ 1] : graph.message[(arc ^ 1) + 1]]
        costs: Costs = table + (self._costs(other)[1] - sent) - received[:, None]
        costs -= costs.min()
        return costs

    def _targets(self, group: int) -> Costs:
        return self.graph.target[self.graph.arcs[self.graph.begin[group] : self.graph.begin[group + 1]]]

    def _behind(self, group: int) -> int:
        return int((self._targets(group) < group).sum())

    def _costs(self, group: int) -> tuple[Costs, Costs]:
        """Costs of a group with its messages, beyond the least, and the share that went to each neighbour before it."""
        graph = self.graph
        total = graph.own[graph.first[group] : graph.first[group + 1]].copy()
        for arc in graph.arcs[graph.begin[group] : graph.begin[group + 1]]:
            total += graph.messages[graph.message[arc ^ 1] : graph.message[(arc ^ 1) + 1]]
        total -= total.min()
        behind = self._behind(group)
        return total, total // max(1, behind, len(self._targets(group)) - behind)
