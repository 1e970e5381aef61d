"""Labels that hard edges leave: those of a view and its source need a partner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.tiling.graph import FORBIDDEN, TilingGraph

Alive = np.ndarray[Any, np.dtype[np.bool_]]
"""Which labels of a group are left."""


Neighbours = list[list[tuple[Alive, int]]]
"""For each group the groups across hard edges, and which pairs of labels those allow."""


def propagate(graph: TilingGraph, near: Neighbours, alive: Sequence[Alive], changed: Iterable[int]) -> None:
    """Remove from `alive` the labels without a partner, beginning at the groups that `changed`, to a fixed point.

    Raises InfeasibleError where a group has none left.
    """
    waiting = list(changed)
    while waiting:
        place = waiting.pop()
        for allowed, other in near[place]:
            left = allowed[alive[place]].any(axis=0)
            if (alive[other] & ~left).any():
                alive[other] &= left
                waiting.append(other)
                if not alive[other].any():
                    raise InfeasibleError(contradiction(graph))


def contradiction(graph: TilingGraph) -> str:
    """Which tilings exclude each other: those of two groups that have only one, and what hard edges let the first leave
    the groups between them."""
    near = neighbours(graph)
    for one, group in enumerate(graph.groups):
        left = {one: np.full(len(group.labels), True)}
        queue = [one] if len(group.labels) == 1 else []
        for place in queue:
            for allowed, other in near[place]:
                if other in left:
                    continue
                left[other] = allowed[left[place]].any(axis=0)
                if not left[other].any():
                    return f"{_words(graph, one)} excludes {_words(graph, other)}"
                if len(left[other]) > 1:
                    queue.append(other)
    return "views and their sources exclude each other's tilings"


def neighbours(graph: TilingGraph) -> Neighbours:
    """The neighbours of all groups of a graph."""
    found: Neighbours = [[] for _ in graph.groups]
    for edge in graph.edges:
        if edge.hard:
            found[edge.one].append((edge.costs < FORBIDDEN, edge.other))
            found[edge.other].append((edge.costs.T < FORBIDDEN, edge.one))
    return found


def _words(graph: TilingGraph, place: int) -> str:
    group = graph.groups[place]
    return f"{' or '.join(group.labels)} of {group.name}"
