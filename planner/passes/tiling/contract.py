"""A tiling graph made smaller without loss: groups joined by hard edges become one, groups with one label become costs.

What is left are groups with two or more labels and edges that cost something, so that re-choosing one group moves a
view together with its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.tiling.capacity import Capacity
from treadle.planner.passes.tiling.graph import Costs, TileEdge, TileGroup, TilingGraph
from treadle.planner.passes.tiling.hard import contradiction, neighbours


@dataclass(frozen=True)
class SmallGraph:
    """`members[g][k]`: the group and the label that it has, for each label of the small group g. `fixed`: groups with
    one label left; `constant`: what they cost."""

    graph: TilingGraph
    members: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]
    fixed: dict[int, int]
    constant: int
    capacities: tuple[Capacity, ...]

    def expanded(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The choice of all groups of the first graph."""
        found = dict(self.fixed)
        for members, label in zip(self.members, choice, strict=True):
            found |= {group: labels[label] for group, labels in members}
        return tuple(found[group] for group in range(len(found)))

    def contracted(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The choice of the small groups in `choice`, a valid one of all groups."""
        return tuple(labels.index(choice[group]) for group, labels in (members[0] for members in self.members))


def contract(graph: TilingGraph, capacities: Sequence[Capacity] = ()) -> SmallGraph:
    """The small graph. Hard edges give each label at most one partner. Raises InfeasibleError where fixed tilings
    contradict each other."""
    near = neighbours(graph)
    home: dict[int, tuple[int, tuple[int, ...]]] = {}
    whole: list[dict[int, tuple[int, ...]]] = []
    for root in range(len(graph.groups)):
        if root not in home:
            whole.append(_component(graph, near, root))
            home |= {group: (len(whole) - 1, labels) for group, labels in whole[-1].items()}
    small = [place for place, part in enumerate(whole) if _options(part) > 1]
    at = {place: number for number, place in enumerate(small)}
    fixed = {group: labels[0] for part in whole if _options(part) == 1 for group, labels in part.items()}
    own = [np.zeros(_options(part), dtype=np.int64) for part in whole]
    for group, (place, labels) in home.items():
        own[place] = own[place] + graph.groups[group].own[list(labels)]
    pairs: dict[tuple[int, int], Any] = {}
    for edge in graph.edges:
        (one, ones), (other, others) = home[edge.one], home[edge.other]
        costs = edge.costs[np.ix_(ones, others)]
        if one == other:
            own[one] = own[one] + costs.diagonal()
        elif one in at and other in at:
            pair, costs = ((one, other), costs) if one < other else ((other, one), costs.T)
            pairs[pair] = pairs[pair] + costs if pair in pairs else costs
        else:
            own[other if other in at else one] += costs.reshape(-1) if one in at or other in at else costs[0]
    groups = [
        TileGroup(
            graph.groups[next(iter(whole[place]))].name,
            tuple(map(str, range(_options(whole[place])))),
            own[place],
        )
        for place in small
    ]
    edges = [TileEdge(at[one], at[other], costs) for (one, other), costs in pairs.items() if costs.any()]
    return SmallGraph(
        graph=TilingGraph(tuple(groups), tuple(edges)),
        members=tuple(tuple(whole[place].items()) for place in small),
        fixed=fixed,
        constant=sum(int(own[place][0]) for place in range(len(whole)) if place not in at),
        capacities=tuple(_capacity(capacity, home, at) for capacity in capacities),
    )


def _options(part: dict[int, tuple[int, ...]]) -> int:
    return len(next(iter(part.values())))


def _component(graph: TilingGraph, near: Sequence[Any], root: int) -> dict[int, tuple[int, ...]]:
    """The groups that hard edges join to `root`, each with its label for each label of the root that leaves all a
    partner."""
    rows = np.arange(len(graph.groups[root].labels))[:, None]
    order = [root]
    for place in order:
        for allowed, other in near[place]:
            mine = rows[:, order.index(place)]
            if other in order:
                rows = rows[allowed[mine, rows[:, order.index(other)]]]
            else:
                partners = allowed[mine]
                rows = np.hstack([rows, partners.argmax(axis=1)[:, None]])[partners.any(axis=1)]
                order.append(other)
            if not len(rows):
                raise InfeasibleError(contradiction(graph))
    return {place: tuple(rows[:, column].tolist()) for column, place in enumerate(order)}


def _capacity(capacity: Capacity, home: Any, at: dict[int, int]) -> Capacity:
    """The same limit on small groups, less what fixed groups use."""
    limit = capacity.limit
    sums: dict[int, Costs] = {}
    for group, weights in capacity.weights:
        place, labels = home[group]
        if place in at:
            sums[at[place]] = sums.get(at[place], 0) + weights[list(labels)]
        else:
            limit -= int(weights[labels[0]])
    return Capacity(tuple(sums.items()), limit)
