"""A lower bound on what a tiling graph costs, and choices from it, by sequential reweighted message passing.

TRW-S (Convergent Tree-reweighted Message Passing for Energy Minimization): groups in their order send each later
neighbour what its labels would cost; then all in reverse. Messages are whole numbers, shares are rounded down, so the
bound holds exactly: a pass back adds up the least that every group and every message has left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

import numpy as np

from treadle.planner.passes.tiling.graph import Costs
from treadle.planner.search.compiled import compiled

SMALL = 60_000
"""Costs in tables below which loops run uncompiled: they end sooner than compilation does."""
Pass = Callable[["FlatGraph", Costs, bool], int]
Descent = Callable[["FlatGraph", Costs], bool]
CostOf = Callable[["FlatGraph", Costs], int]
Loop = TypeVar("Loop", bound=Callable[..., object])


class FlatGraph(NamedTuple):
    """A graph as arrays. Edge e is the arcs 2e, from one group to the other, and 2e + 1 back.

    own[first[g]:first[g + 1]] are the costs of group g; arcs[begin[g]:begin[g + 1]] those that leave it. Arc a ends in
    group `target[a]`; its table, labels of its source first, begins at tables[table[a]], its message to its target at
    messages[message[a]].
    """

    own: Costs
    first: Costs
    arcs: Costs
    begin: Costs
    target: Costs
    tables: Costs
    table: Costs
    messages: Costs
    message: Costs


def flat(own: Sequence[Costs], edges: Sequence[tuple[int, int, Costs]]) -> FlatGraph:
    """The arrays of a graph, with messages of 0."""
    ends = np.array([end for one, other, _ in edges for end in (one, other)], dtype=np.int64)
    target = ends.reshape(-1, 2)[:, ::-1].ravel()
    labels = np.array([len(each) for each in own], dtype=np.int64)
    tables = [side.ravel() for _, _, table in edges for side in (table, table.T)]
    none = np.zeros(0, dtype=np.int64)
    return FlatGraph(
        own=np.concatenate([*own, none]),
        first=_starts(labels),
        arcs=np.argsort(ends, kind="stable"),
        begin=_starts(np.bincount(ends, minlength=len(own))),
        target=target,
        tables=np.concatenate([*tables, none]),
        table=_starts(np.array([table.size for table in tables], dtype=np.int64)),
        messages=np.zeros(int(labels[target].sum()), dtype=np.int64),
        message=_starts(labels[target]),
    )


def plain(loop: Loop) -> Loop:
    """The loop uncompiled, with the same results."""
    return cast(Loop, getattr(loop, "py_func", loop))


def loops(graph: FlatGraph) -> tuple[Pass, Descent, CostOf]:
    """`passed`, `descended` and `flat_cost` as they are quickest for a graph."""
    if len(graph.tables) < SMALL:
        return plain(passed), plain(descended), plain(flat_cost)
    return passed, descended, flat_cost


def _starts(counts: Costs) -> Costs:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


@compiled
def passed(graph: FlatGraph, choice: Costs, forward: bool) -> int:
    """One pass over the groups; `choice` becomes the labels that are best as it goes. Returns what it proves: no choice
    costs less."""
    own, first, arcs, begin, target, tables, table, messages, message = graph
    bound = 0
    groups = len(first) - 1
    for turn in range(groups):
        group = turn if forward else groups - 1 - turn
        labels = first[group + 1] - first[group]
        total = own[first[group] : first[group + 1]].copy()
        taken = total.copy()
        ahead = 0
        for arc in arcs[begin[group] : begin[group + 1]]:
            incoming = messages[message[arc ^ 1] : message[arc ^ 1] + labels]
            total += incoming
            if (target[arc] > group) == forward:
                ahead += 1
                taken += incoming
            else:
                row = table[arc ^ 1] + choice[target[arc]] * labels
                taken += tables[row : row + labels]
        choice[group] = np.argmin(taken)
        least = total.min()
        bound += least
        shares = max(ahead, begin[group + 1] - begin[group] - ahead)
        if ahead == 0:
            continue
        shared = (total - least) // shares
        for arc in arcs[begin[group] : begin[group + 1]]:
            if (target[arc] > group) != forward:
                continue
            width = first[target[arc] + 1] - first[target[arc]]
            kept = shared - messages[message[arc ^ 1] : message[arc ^ 1] + labels]
            row = table[arc]
            sent = kept[0] + tables[row : row + width]
            for label in range(1, labels):
                row += width
                sent = np.minimum(sent, kept[label] + tables[row : row + width])
            least = sent.min()
            bound += least
            messages[message[arc] : message[arc] + width] = sent - least
    return bound


@compiled
def descended(graph: FlatGraph, choice: Costs) -> bool:
    """Change single labels of `choice` for the better, each group once. Returns whether any was changed."""
    own, first, arcs, begin, target, tables, table, _, _ = graph
    changed = False
    for group in range(len(first) - 1):
        labels = first[group + 1] - first[group]
        costs = own[first[group] : first[group + 1]].copy()
        for arc in arcs[begin[group] : begin[group + 1]]:
            row = table[arc ^ 1] + choice[target[arc]] * labels
            costs += tables[row : row + labels]
        best = np.argmin(costs)
        if costs[best] < costs[choice[group]]:
            choice[group] = best
            changed = True
    return changed


@compiled
def flat_cost(graph: FlatGraph, choice: Costs) -> int:
    """What `choice` costs."""
    own, first, arcs, begin, target, tables, table, _, _ = graph
    total = 0
    for group in range(len(first) - 1):
        total += own[first[group] + choice[group]]
        for arc in arcs[begin[group] : begin[group + 1]]:
            if target[arc] > group:
                width = first[target[arc] + 1] - first[target[arc]]
                total += tables[table[arc] + choice[group] * width + choice[target[arc]]]
    return total
