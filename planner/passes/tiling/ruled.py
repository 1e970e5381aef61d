"""The tiling graph of a problem of rules.

Each node is a group whose labels say how it reads its inputs and makes its results: one rule along each axis of the
mesh. Each array is a group of its tilings. Edges carry the price of getting from one to the other; nodes their work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.tiling.array_rules import rules_of
from treadle.planner.passes.tiling.decisions import TiledEdge
from treadle.planner.passes.tiling.graph import FORBIDDEN, Costs, TileEdge, TileGroup, TilingGraph
from treadle.planner.passes.tiling.problem import ArrayNode, ArrayTiling, TiledArray, TilingProblem, TilingRule
from treadle.planner.passes.tiling.redistribution import Shape, TilingPrices, divides, tilings_of
from treadle.planner.passes.tiling.sound import check_calls


@dataclass(frozen=True)
class NodeLabel:
    """How a node may run: `working` workers share its work."""

    reads: tuple[ArrayTiling, ...]
    makes: tuple[ArrayTiling, ...]
    working: int

    def __str__(self) -> str:
        reads, makes = (" ".join(",".join(tiling) for tiling in tilings) for tilings in (self.reads, self.makes))
        return f"{reads} -> {makes}"


@dataclass(frozen=True)
class RuledGraph:
    """`nodes[n]` and `arrays[a]` are the labels of node n and array a of the problem, `node_groups[n]` and
    `array_groups[a]` their groups of the graph."""

    graph: TilingGraph
    nodes: tuple[tuple[NodeLabel, ...], ...]
    arrays: tuple[tuple[ArrayTiling, ...], ...]
    node_groups: tuple[int, ...]
    array_groups: tuple[int, ...]

    def tilings(self, choice: Sequence[int]) -> tuple[ArrayTiling, ...]:
        """The tiling of each array of the problem."""
        return tuple(labels[choice[at]] for labels, at in zip(self.arrays, self.array_groups, strict=True))

    def node_labels(self, choice: Sequence[int]) -> tuple[NodeLabel, ...]:
        return tuple(labels[choice[at]] for labels, at in zip(self.nodes, self.node_groups, strict=True))


def ruled_graph(problem: TilingProblem) -> RuledGraph:
    """Groups in the order of nodes, each followed by the arrays it makes.

    Raises InputError for an unsound node and a fixed tiling that the array cannot have, InfeasibleError for a node that
    no rule serves and for arrays that must be alike but are fixed to differ.
    """
    check_calls(problem)
    _like(problem)
    return _Builder(problem).built()


def _like(problem: TilingProblem) -> None:
    first: dict[str, str] = {}
    fixed: dict[str, tuple[str, ArrayTiling]] = {}
    for array in problem.arrays:
        root = first[array.id] = array.id if array.like is None else first.get(array.like, array.like)
        if array.fixed is not None:
            name, tiling = fixed.setdefault(root, (array.id, array.fixed))
            if tiling != array.fixed:
                both = f"{name!r} is fixed to {','.join(tiling)} and {array.id!r} to {','.join(array.fixed)}"
                raise InfeasibleError(f"{problem.name}: {both}, but they must have the same tiling")


def array_labels(problem: TilingProblem) -> tuple[tuple[ArrayTiling, ...], ...]:
    """The tilings that each array may have. Partial results where a rule makes them, except for what the problem
    returns or keeps."""
    sizes = tuple(axis.size for axis in problem.mesh)
    partial = {
        name
        for node in problem.nodes
        for rule in {*node.rules}
        for name, placement in zip(node.outputs, problem.rules[rule].outputs, strict=False)
        if placement == "P"
    }.difference(problem.outputs)
    known: dict[tuple[Shape, bool], tuple[ArrayTiling, ...]] = {}
    labels = list[tuple[ArrayTiling, ...]]()
    for array in problem.arrays:
        if array.fixed is not None:
            if not set("".join(array.fixed)) <= set("SRP0123456789"):
                raise InputError(f"{','.join(array.fixed)} is for a mesh of one axis", where=f"array {array.id!r}")
            if not divides(array.fixed, array.shape, sizes):
                found = f"{','.join(array.fixed)} on a mesh of {'x'.join(map(str, sizes))}"
                raise InputError(f"{found} does not divide the shape {array.shape}", where=f"array {array.id!r}")
            if "P" in array.fixed and (array.id not in partial or array.kept_item_bytes):
                found = f"{','.join(array.fixed)} of an array that may not be left as partial results"
                raise InputError(f"found {found}", where=f"array {array.id!r}")
            labels.append((array.fixed,))
            continue
        key = (array.shape, array.id in partial and not array.kept_item_bytes)
        if key not in known:
            known[key] = tilings_of(array.shape, sizes, partial=key[1])
        labels.append(known[key])
    return tuple(labels)


def priced(
    problem: TilingProblem,
    tilings: Sequence[ArrayTiling],
    reads: Sequence[tuple[ArrayTiling, ...]],
    makes: Sequence[tuple[ArrayTiling, ...]],
) -> tuple[tuple[TiledEdge, ...], int]:
    """What moves between arrays and nodes, and what all of that and the work of the nodes cost."""
    prices = TilingPrices.of(problem)
    place = {array.id: number for number, array in enumerate(problem.arrays)}
    edges: list[TiledEdge] = []

    def move(node: ArrayNode, name: str, reading: int | None, before: ArrayTiling, after: ArrayTiling) -> None:
        if before != after:
            array = problem.arrays[place[name]]
            path = prices.path(array, before, after)
            moved = sum(step.elements for step in path) * array.item_bytes
            steps = tuple(step.step for step in path)
            cost = sum(step.cost for step in path)
            edges.append(TiledEdge(array=name, node=node.id, reading=reading, steps=steps, bytes=moved, cost=cost))

    cost = 0
    for node, read, made in zip(problem.nodes, reads, makes, strict=True):
        for reading, (name, tiling) in enumerate(zip(node.inputs, read, strict=True)):
            move(node, name, reading, tilings[place[name]], tiling)
        for name, tiling in zip(node.outputs, made, strict=True):
            move(node, name, None, tiling, tilings[place[name]])
        if problem.model == "time":
            cost += -(-node.work_ns // _working(prices.sizes, read, made)) + problem.call_ns
    return tuple(edges), cost + sum(edge.cost for edge in edges)


def _working(sizes: Shape, reads: Sequence[ArrayTiling], makes: Sequence[ArrayTiling]) -> int:
    """How many workers share the work of a node that reads and makes this."""
    cut = (any(tiling[axis][0] == "S" for tiling in (*reads, *makes)) for axis in range(len(sizes)))
    return prod(size for size, cuts in zip(sizes, cut, strict=True) if cuts)


@dataclass(frozen=True)
class _Labels:
    """Labels of nodes of one kind; `number` stands for them in keys."""

    number: int
    labels: tuple[NodeLabel, ...]
    words: tuple[str, ...]
    working: Costs


class _Builder:
    """Tables and labels that are equal are made once: blocks of models repeat them."""

    def __init__(self, problem: TilingProblem) -> None:
        self.problem = problem
        self.sizes = tuple(axis.size for axis in problem.mesh)
        self.prices = TilingPrices.of(problem)
        self.shapes = {array.id: array.shape for array in problem.arrays}
        self.place = {array.id: place for place, array in enumerate(problem.arrays)}
        self.arrays = array_labels(problem)
        kinds: dict[object, int] = {}
        zipped = zip(problem.arrays, self.arrays, strict=True)
        self.kinds = [kinds.setdefault((array.shape, array.item_bytes, labels), len(kinds)) for array, labels in zipped]
        self.words = {labels: tuple(",".join(tiling) for tiling in labels) for labels in {*self.arrays}}
        self.labels: dict[object, _Labels] = {}
        self.tables: dict[object, Costs] = {}
        self.groups: list[TileGroup] = []
        self.edges: list[TileEdge] = []

    def built(self) -> RuledGraph:
        nodes, node_groups = [], []
        array_groups = [-1] * len(self.problem.arrays)
        for node in self.problem.nodes:
            labels = self._labels(node)
            nodes.append(labels.labels)
            node_groups.append(len(self.groups))
            self._add_node(node, labels, array_groups)
        for array, group in zip(self.problem.arrays, array_groups, strict=True):
            if group < 0:
                raise InputError("found no node that makes it", where=f"array {array.id!r}")
        return RuledGraph(
            TilingGraph(tuple(self.groups), tuple(self.edges)),
            tuple(nodes),
            self.arrays,
            tuple(node_groups),
            tuple(array_groups),
        )

    def _labels(self, node: ArrayNode) -> _Labels:
        axes = tuple(rules_of(self.problem, node, axis, self.shapes) for axis in range(len(self.sizes)))
        reads = tuple(self.shapes[name] for name in node.inputs)
        makes = tuple(self.shapes[name] for name in node.outputs)
        key = (axes, reads, makes)
        if key not in self.labels:
            labels = self._products(axes, reads, makes)
            working = np.array([label.working for label in labels], dtype=np.int64)
            self.labels[key] = _Labels(len(self.labels), labels, tuple(map(str, labels)), working)
        if not self.labels[key].labels:
            raise InfeasibleError(f"node {node.id!r}: none of its rules fits its shapes on the mesh")
        return self.labels[key]

    def _products(
        self, axes: Sequence[Sequence[TilingRule]], reads: Sequence[Shape], makes: Sequence[Shape]
    ) -> tuple[NodeLabel, ...]:
        found: dict[tuple[tuple[ArrayTiling, ...], tuple[ArrayTiling, ...]], NodeLabel] = {}
        for rules in product(*axes):
            read = tuple(tuple(rule.inputs[place] for rule in rules) for place in range(len(reads)))
            made = tuple(tuple(rule.outputs[place] for rule in rules) for place in range(len(makes)))
            if (read, made) in found:
                continue
            if all(divides(*pair, self.sizes) for pair in zip((*read, *made), (*reads, *makes), strict=True)):
                found[read, made] = NodeLabel(read, made, _working(self.sizes, read, made))
        return tuple(found.values())

    def _add_node(self, node: ArrayNode, labels: _Labels, array_groups: list[int]) -> None:
        here = len(self.groups)
        own = np.zeros(len(labels.labels), dtype=np.int64)
        if self.problem.model == "time":
            own = -(-node.work_ns // labels.working) + self.problem.call_ns
        self.groups.append(TileGroup(node.id, labels.words, own))
        for name in dict.fromkeys(node.inputs):
            places = tuple(place for place, read in enumerate(node.inputs) if read == name)
            array = self.place[name]
            self.edges.append(TileEdge(array_groups[array], here, self._read(array, labels, places)))
        for place, name in enumerate(node.outputs):
            array = self.place[name]
            group = array_groups[array] = len(self.groups)
            tilings = self.arrays[array]
            self.groups.append(TileGroup(name, self.words[tilings], np.zeros(len(tilings), dtype=np.int64)))
            self.edges.append(TileEdge(here, group, self._made(array, labels, place)))
            if (like := self.problem.arrays[array].like) is not None:
                other = self.place[like]
                self.edges.append(TileEdge(array_groups[other], group, self._equal(other, array), hard=True))

    def _read(self, array: int, labels: _Labels, places: tuple[int, ...]) -> Costs:
        """Prices of an array, by its tilings, for a node that reads it as its inputs `places`."""
        key = ("read", self.kinds[array], labels.number, places)
        if key not in self.tables:
            ends = ([label.reads[place] for label in labels.labels] for place in places)
            tables = [self._prices(self.problem.arrays[array], self.arrays[array], reads) for reads in ends]
            self.tables[key] = np.minimum(sum(tables[1:], start=tables[0]), FORBIDDEN)
        return self.tables[key]

    def _made(self, array: int, labels: _Labels, place: int) -> Costs:
        key = ("made", self.kinds[array], labels.number, place)
        if key not in self.tables:
            makes = [label.makes[place] for label in labels.labels]
            self.tables[key] = self._prices(self.problem.arrays[array], makes, self.arrays[array])
        return self.tables[key]

    def _equal(self, one: int, other: int) -> Costs:
        key = ("equal", self.kinds[one], self.kinds[other])
        if key not in self.tables:
            same = [[before == after for after in self.arrays[other]] for before in self.arrays[one]]
            self.tables[key] = np.where(np.array(same), np.int64(0), np.int64(FORBIDDEN))
        return self.tables[key]

    def _prices(self, array: TiledArray, before: Sequence[ArrayTiling], after: Sequence[ArrayTiling]) -> Costs:
        table = self.prices.table(array)
        rows, columns = ([table.places[tiling] for tiling in tilings] for tilings in (before, after))
        return table.costs[np.ix_(rows, columns)]
