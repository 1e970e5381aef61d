"""The tiling graph: groups of tilings of which one each is chosen, and what neighbours cost together.

The graph of the paper and the graph of rules are both made of this, and all methods that search work on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FORBIDDEN = 2**50
"""What a pair costs that must not be chosen: more than any plan, and sums of thousands still fit into an int64."""
Costs = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class TileGroup:
    """`labels` are the words of its choices, `own` what each costs on its own: shape (labels,)."""

    name: str
    labels: tuple[str, ...]
    own: Costs


@dataclass(frozen=True)
class TileEdge:
    """`costs[t, u]` where group `one` takes t and group `other` takes u; edges of equal costs share the array. `view`:
    `other` is a view of `one`. A hard edge has only 0 and FORBIDDEN."""

    one: int
    other: int
    costs: Costs
    view: bool = False
    hard: bool = False


@dataclass(frozen=True)
class TilingGraph:
    """At most one edge joins two groups in one direction; edges are in the order in which they were made."""

    groups: tuple[TileGroup, ...]
    edges: tuple[TileEdge, ...]


def cost_of(graph: TilingGraph, choice: tuple[int, ...]) -> int | None:
    """What `choice`, a label of each group, costs; None where a pair of it is forbidden."""
    total = sum(int(group.own[label]) for group, label in zip(graph.groups, choice, strict=True))
    total += sum(int(edge.costs[choice[edge.one], choice[edge.other]]) for edge in graph.edges)
    return total if total < FORBIDDEN else None
