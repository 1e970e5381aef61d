"""Local search: each group in turn takes the label that costs least with those of all others, until no gain is left.

On a contracted graph a view moves together with its source, which repairs the failure of the greedy search that its
author shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from treadle.planner.passes.tiling.capacity import Capacity
from treadle.planner.passes.tiling.graph import Costs, TilingGraph


def swept(graph: TilingGraph, choice: Sequence[int], capacities: Sequence[Capacity] = ()) -> tuple[int, ...]:
    """A choice that no single group improves within `capacities`, from one that may exceed them: each change lowers
    what is used too much, or else the cost. Equal costs change nothing."""
    found, near = list(choice), _near(graph)
    limited: list[list[tuple[Capacity, Costs]]] = [[] for _ in graph.groups]
    for capacity in capacities:
        for place, weights in capacity.weights:
            limited[place].append((capacity, weights))
    used = {id(capacity): capacity.used(found) for capacity in capacities}
    changed = True
    while changed:
        changed = False
        for place, group in enumerate(graph.groups):
            costs = group.own.copy()
            for other, table in near[place]:
                costs += table[:, found[other]]
            excess = np.zeros(len(costs), dtype=np.int64)
            for capacity, weights in limited[place]:
                after = used[id(capacity)] + weights - weights[found[place]]
                excess += np.maximum(after - capacity.limit, 0)
            best = np.lexsort((np.arange(len(costs)) != found[place], costs, excess))[0]
            if (excess[best], costs[best]) < (excess[found[place]], costs[found[place]]):
                for capacity, weights in limited[place]:
                    used[id(capacity)] += int(weights[best] - weights[found[place]])
                found[place], changed = int(best), True
    return tuple(found)


def _near(graph: TilingGraph) -> list[list[tuple[int, Costs]]]:
    """For each group its neighbours, and the costs with its own labels in rows."""
    near: list[list[tuple[int, Costs]]] = [[] for _ in graph.groups]
    for edge in graph.edges:
        near[edge.one].append((edge.other, edge.costs))
        near[edge.other].append((edge.one, edge.costs.T))
    return near
