"""The greedy search of Spartan, maximum connectivity first, with hard edges propagated.

    order = groups by the number of distinct adjacent groups, largest first, stable
    for G in order:
        take the label T of G with the least find_cost(G, T), the first of several; all others of G are gone
        labels of sources and views without a partner are gone too, to a fixed point

    find_cost(G, T) = own(G, T) + sum over adjacent groups g of
        find_cost(g, the label of g that T forces)     if g is a view of G
        the least remaining entry of their edge        otherwise; impossible if none remains

A consumer never looks through a view back to its source, which is why the search fails on the program of the thesis'
figure 3.3. Propagation is ours: without it, two views of one array may leave their source no label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.tiling.capacity import Capacity
from treadle.planner.passes.tiling.decisions import GreedyStep
from treadle.planner.passes.tiling.graph import FORBIDDEN, TileEdge, TilingGraph
from treadle.planner.passes.tiling.hard import neighbours, propagate


@dataclass(frozen=True)
class GreedyResult:
    """A label of each group, and how they were decided."""

    choice: tuple[int, ...]
    steps: tuple[GreedyStep, ...]


def greedy(graph: TilingGraph, second: Sequence[Capacity] = ()) -> GreedyResult:
    """The choice of the greedy search. `second`: the budget of second copies; labels that do not fit what is left of it
    are gone. Raises InfeasibleError where fixed tilings contradict each other, or take more than the budget."""
    return _Greedy(graph, second).decided()


class _Greedy:
    def __init__(self, graph: TilingGraph, second: Sequence[Capacity]) -> None:
        self.graph, self.second = graph, second
        self.alive = [np.full(len(group.labels), True) for group in graph.groups]
        self.near = neighbours(graph)
        self.edges: list[list[TileEdge]] = [[] for _ in graph.groups]
        for edge in graph.edges:
            self.edges[edge.one].append(edge)
            self.edges[edge.other].append(edge)

    def decided(self) -> GreedyResult:
        adjacent = [{edge.one + edge.other - place for edge in edges} for place, edges in enumerate(self.edges)]
        steps = []
        self._narrow(range(len(adjacent)))
        for place in sorted(range(len(adjacent)), key=lambda place: -len(adjacent[place])):
            group = self.graph.groups[place]
            costs = [self._find_cost(place, label) for label in range(len(group.labels))]
            possible = [cost for cost in costs if cost is not None]
            if not possible:
                raise InfeasibleError(f"the greedy method leaves {group.name} no tiling; use --tiling exact")
            choice = costs.index(min(possible))
            self.alive[place][:] = False
            self.alive[place][choice] = True
            self._narrow((place,))
            steps.append(GreedyStep(group=group.name, costs=tuple(costs), choice=choice))
        return GreedyResult(tuple(int(alive.argmax()) for alive in self.alive), tuple(steps))

    def _narrow(self, changed: Iterable[int]) -> None:
        """Remove labels without a partner, and second copies that do not fit any more, to a fixed point."""
        propagate(self.graph, self.near, self.alive, changed)
        for capacity in self.second:
            left = capacity.limit - sum(int(weights[self.alive[group]].min()) for group, weights in capacity.weights)
            if left < 0:
                raise InfeasibleError(
                    f"fixed tilings take {capacity.limit - left} bytes of second copies, of {capacity.limit}"
                )
            for group, weights in capacity.weights:
                self.alive[group] &= weights - weights[self.alive[group]].min() <= left
            propagate(self.graph, self.near, self.alive, (group for group, _ in capacity.weights))

    def _find_cost(self, place: int, label: int) -> int | None:
        if not self.alive[place][label]:
            return None
        total = int(self.graph.groups[place].own[label])
        for edge in self.edges[place]:
            entries = edge.costs[label] if edge.one == place else edge.costs[:, label]
            other = edge.one + edge.other - place
            if edge.view and edge.one == place:
                cost = self._find_cost(other, int(entries.argmin())) if entries.min() < FORBIDDEN else None
            else:
                left = entries[self.alive[other]]
                cost = int(left.min()) if left.min() < FORBIDDEN else None
            if cost is None:
                return None
            total += cost
        return total
