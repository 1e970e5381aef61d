"""The least cost of a problem, by eliminating one group of tilings after the other (dynamic programming).

Each table says what a few groups cost together. A group is eliminated by adding the tables that have it and taking the
minimum over its tilings. That is exact, and quick while few groups are neighbours at a time. Limits on memory and on
second copies are left out, so with them the least cost is a bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from math import prod
from typing import Any

import numpy as np

from treadle.planner.passes.tiling.check_greedy import GreedyReplay
from treadle.planner.passes.tiling.check_moves import CheapestMoves
from treadle.planner.passes.tiling.check_published import published_ns
from treadle.planner.passes.tiling.check_ruled import RuledCounts, moved_ns
from treadle.planner.passes.tiling.check_rules import RuleCheck
from treadle.planner.passes.tiling.problem import ArrayNode, ArrayTiling, TiledArray, TilingProblem

MOST_ENTRIES = 2**21
"""Entries of a table; with larger ones the bound is not derived."""
MOST_NODES = 400
NEVER = 2**55
Scope = tuple[str, ...]
Tables = dict[Scope, Any]
"""By the names of one or two groups, an axis for each."""


def work_ns(problem: TilingProblem) -> int:
    """What operators take, shared by all workers."""
    workers = prod(axis.size for axis in problem.mesh)
    in_ns = problem.model == "time"
    return sum(problem.call_ns - node.work_ns // -workers for node in problem.nodes) if in_ns else 0


def least_ns(problem: TilingProblem) -> int | None:
    """No plan takes less time; None where the tables grow too large."""
    if len(problem.nodes) > MOST_NODES:
        return None
    if problem.published:
        cost = eliminated(_published_tables(problem))
        return None if cost is None else published_ns(problem, cost)
    tables = _ruled_tables(problem)
    cost = None if tables is None else eliminated(tables)
    if cost is None:
        return None
    return cost if problem.model == "time" else moved_ns(problem, cost)


def eliminated(tables: Mapping[Scope, Any]) -> int | None:
    """The least sum of all tables over all choices; None where a table grows too large."""
    left, total = dict(tables), 0
    sizes = {name: size for scope, table in left.items() for name, size in zip(scope, table.shape, strict=True)}
    orders = _orders(sizes, left)
    if orders is None:
        return None
    for order in orders:
        name = order[0]
        joined: Any = np.zeros([sizes[each] for each in order], dtype=np.int64)
        for scope in [scope for scope in left if name in scope]:
            joined += _spread(left.pop(scope), scope, order)
        rest, least = order[1:], joined.min(axis=0)
        if not rest:
            total += int(least)
        else:
            left[rest] = np.minimum(least + left.get(rest, 0), NEVER)
    return total if total < NEVER else None


def _orders(sizes: Mapping[str, int], scopes: Iterable[Scope]) -> list[Scope] | None:
    """Each group with its neighbours at the time when it is eliminated, that of the smallest table first; None where
    one grows too large."""
    near: dict[str, set[str]] = {name: set() for name in sizes}
    for scope in scopes:
        for name in scope:
            near[name] |= {*scope} - {name}
    found: list[Scope] = []
    while near:
        name = min(near, key=lambda name: (prod(sizes[each] for each in near[name]) * sizes[name], name))
        around = near.pop(name)
        if prod(sizes[each] for each in around) * sizes[name] > MOST_ENTRIES:
            return None
        found.append((name, *sorted(around)))
        for other in around:
            near[other] = (near[other] | around) - {other, name}
    return found


def _spread(table: Any, scope: Scope, order: Scope) -> Any:
    """A table with an axis for each group of `order`, of size 1 where it does not have it."""
    turned = np.transpose(table, sorted(range(len(scope)), key=lambda place: order.index(scope[place])))
    return turned.reshape([table.shape[scope.index(name)] if name in scope else 1 for name in order])


def _published_tables(problem: TilingProblem) -> Tables:
    replayed = GreedyReplay(problem)
    tables: Tables = {(name,): np.array(own, dtype=np.int64) for name, own in replayed.own.items()}
    for scope, rows in replayed.tables.items():
        tables[scope] = np.array([[NEVER if cost is None else cost for cost in row] for row in rows], dtype=np.int64)
    return tables


def _ruled_tables(problem: TilingProblem) -> Tables | None:
    """Costs, or moved bytes for the model `exact`, of operators and their arrays; None where they are too large."""
    rules, moves = RuleCheck(problem), CheapestMoves(problem)
    tilings = {array.id: rules.tilings(array, moves) for array in problem.arrays}
    labels = {node.id: _labels(problem, node, rules, moves) for node in problem.nodes}
    pairs = [(f"array {name}", f"node {node.id}") for node in problem.nodes for name in (*node.inputs, *node.outputs)]
    pairs += [(f"array {array.like}", f"array {array.id}") for array in problem.arrays if array.like is not None]
    sizes = {f"array {name}": len(each) for name, each in tilings.items()}
    sizes |= {f"node {name}": len(each) for name, each in labels.items()}
    if _orders(sizes, pairs) is None:
        return None
    tables: Tables = {(name,): np.zeros(size, dtype=np.int64) for name, size in sizes.items()}
    for node in problem.nodes:
        if problem.model == "time":
            own = [RuledCounts.work_ns(problem, node, reads, makes) for reads, makes in labels[node.id]]
            tables[(f"node {node.id}",)] = np.array(own, dtype=np.int64)
        for place, name in enumerate((*node.inputs, *node.outputs)):
            ends = [(*reads, *makes)[place] for reads, makes in labels[node.id]]
            array = rules.arrays[name]
            found = np.array(
                [
                    [
                        _price(problem, moves, array, here, there)
                        if place < len(node.inputs)
                        else _price(problem, moves, array, there, here)
                        for there in ends
                    ]
                    for here in tilings[name]
                ],
                dtype=np.int64,
            )
            scope = (f"array {name}", f"node {node.id}")
            tables[scope] = np.minimum(found + tables[scope], NEVER) if scope in tables else found
    for array in problem.arrays:
        if array.like is not None:
            same = [[0 if one == other else NEVER for other in tilings[array.id]] for one in tilings[array.like]]
            tables[(f"array {array.like}", f"array {array.id}")] = np.array(same, dtype=np.int64)
    return tables


def _price(
    problem: TilingProblem, moves: CheapestMoves, array: TiledArray, before: ArrayTiling, after: ArrayTiling
) -> int:
    route = moves.route(array, before, after)
    if route is None:
        return NEVER
    return route.cost if problem.model == "time" else route.elements * array.item_bytes


def _labels(
    problem: TilingProblem, node: ArrayNode, rules: RuleCheck, moves: CheapestMoves
) -> list[tuple[tuple[ArrayTiling, ...], tuple[ArrayTiling, ...]]]:
    """How an operator may run: one of its rules for each axis of the mesh."""
    names, inputs = (*node.inputs, *node.outputs), len(node.inputs)
    found = []
    for chosen in product(*(rules.options(node, place) for place in range(len(problem.mesh)))):
        words = [tuple((*reads, *makes)[place] for reads, makes in chosen) for place in range(len(names))]
        if all(moves.divides(word, rules.shapes[name]) for word, name in zip(words, names, strict=True)):
            found.append((tuple(words[:inputs]), tuple(words[inputs:])))
    return [*dict.fromkeys(found)]
