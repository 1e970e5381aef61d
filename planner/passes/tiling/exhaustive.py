"""All choices of a tiling graph, one after another: the reference for small graphs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from treadle.planner.passes.tiling.capacity import Capacity
from treadle.planner.passes.tiling.contract import SmallGraph, contract
from treadle.planner.passes.tiling.graph import FORBIDDEN, Costs, TilingGraph

BATCH = 1 << 20
"""Choices that are priced at once."""


class Enumerated(NamedTuple):
    """The least cost, the first choice that has it, how many have it, and the number of all choices."""

    cost: int
    choice: tuple[int, ...]
    optimal: int
    choices: int


def enumerated(graph: TilingGraph, capacities: Sequence[Capacity] = ()) -> Enumerated | None:
    """The best of all choices of labels that hard edges allow; None where no choice fits into `capacities`."""
    small = contract(graph, capacities)
    shape = tuple(len(group.labels) for group in small.graph.groups)
    tail = len(shape)
    while tail and prod(shape[tail - 1 :]) <= BATCH:
        tail -= 1
    best, first, optimal = FORBIDDEN, None, 0
    inner = _sums(small, shape, tail)
    for head in np.ndindex(*shape[:tail]):
        costs = _priced(small, shape, tail, head, inner)
        least = int(costs.min())
        if least < best:
            best, optimal = least, 0
            first = (*head, *map(int, np.unravel_index(int(costs.argmin()), costs.shape)))
        if least == best and first is not None:
            optimal += int((costs == least).sum())
    if first is None or best + small.constant >= FORBIDDEN:
        return None
    return Enumerated(best + small.constant, small.expanded(first), optimal, prod(shape))


def _spread(costs: Costs, groups: Sequence[int], tail: int, count: int) -> Costs:
    """`costs` with an axis for each group from `tail` on, of size 1 for others than `groups`, which are in order."""
    sizes = dict(zip(groups, costs.shape, strict=True))
    return costs.reshape([sizes.get(group, 1) for group in range(tail, count)])


def _sums(small: SmallGraph, shape: tuple[int, ...], tail: int) -> Costs:
    """What all choices of the groups from `tail` on cost among themselves."""
    total = np.zeros(shape[tail:], dtype=np.int64)
    for place, group in enumerate(small.graph.groups[tail:], tail):
        total = total + _spread(group.own, (place,), tail, len(shape))
    for edge in small.graph.edges:
        if edge.one >= tail:
            total = total + _spread(edge.costs, (edge.one, edge.other), tail, len(shape))
    return total


def _priced(small: SmallGraph, shape: tuple[int, ...], tail: int, head: tuple[int, ...], inner: Costs) -> Costs:
    """What all choices with the labels `head` of the first groups cost."""
    total, count = inner.copy(), len(shape)
    total += sum(int(group.own[label]) for group, label in zip(small.graph.groups, head, strict=False))
    for edge in small.graph.edges:
        if edge.other < tail:
            total += edge.costs[head[edge.one], head[edge.other]]
        elif edge.one < tail:
            total += _spread(edge.costs[head[edge.one]], (edge.other,), tail, count)
    for capacity in small.capacities:
        used = np.zeros((1,) * (count - tail), dtype=np.int64)
        for group, weights in capacity.weights:
            used = used + (weights[head[group]] if group < tail else _spread(weights, (group,), tail, count))
        total = np.where(used <= capacity.limit, total, FORBIDDEN)
    return total
