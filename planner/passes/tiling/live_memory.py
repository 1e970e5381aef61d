"""What a worker holds while each node of a ruled problem runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from msgspec.structs import replace

from treadle.planner.passes.tiling.graph import Costs
from treadle.planner.passes.tiling.problem import ArrayTiling, TiledArray, TilingProblem
from treadle.planner.passes.tiling.redistribution import cuts_of
from treadle.planner.passes.tiling.ruled import NodeLabel, RuledGraph

Placed = Sequence[tuple[ArrayTiling, ...]]


def lives(problem: TilingProblem) -> tuple[tuple[int, int], ...]:
    """The first and the last node at which each array is in memory: what shares its memory is read there too."""
    place = {array.id: number for number, array in enumerate(problem.arrays)}
    first, last = [0] * len(place), [0] * len(place)
    for moment, node in enumerate(problem.nodes):
        for name in node.inputs:
            last[place[name]] = moment
        for name in node.outputs:
            first[place[name]] = last[place[name]] = moment
    for name in problem.outputs:
        last[place[name]] = len(problem.nodes) - 1
    for number in reversed(range(len(place))):
        if (base := problem.arrays[number].shares) is not None:
            last[place[base]] = max(last[place[base]], last[number])
    return tuple(zip(first, last, strict=True))


def memory_at(problem: TilingProblem, tilings: Sequence[ArrayTiling], reads: Placed, makes: Placed) -> list[int]:
    """Bytes on a worker while each node runs."""
    sizes = tuple(axis.size for axis in problem.mesh)
    place = {array.id: number for number, array in enumerate(problem.arrays)}
    changes = np.zeros(len(problem.nodes) + 1, dtype=np.int64)

    def held(array: TiledArray, tiling: ArrayTiling, first: int, last: int) -> None:
        count = prod(array.shape) * array.item_bytes // cuts_of(tiling, sizes)
        changes[first] += count
        changes[last + 1] -= count

    made = {
        name: tiling
        for node, tilings_made in zip(problem.nodes, makes, strict=True)
        for name, tiling in zip(node.outputs, tilings_made, strict=True)
    }
    for array, tiling, (first, last) in zip(problem.arrays, tilings, lives(problem), strict=True):
        if array.shares is None or made[array.id] != tiling:
            held(array, tiling, first, last)
        changes[0] += prod(array.shape) * array.kept_item_bytes // cuts_of(tiling, sizes)
    for moment, (node, read) in enumerate(zip(problem.nodes, reads, strict=True)):
        for name, tiling in dict.fromkeys(zip(node.inputs, read, strict=True)):
            if tiling != tilings[place[name]]:
                held(problem.arrays[place[name]], tiling, moment, moment)
        for name in node.outputs:
            if made[name] != tilings[place[name]]:
                held(problem.arrays[place[name]], made[name], moment, moment)
    return [int(count) for count in np.cumsum(changes[:-1])]


@dataclass(frozen=True)
class HeldBytes:
    """Bytes by labels of a group (`at` is its place), or by pairs of labels of an edge, from `first` to `last`."""

    at: int
    bytes: Costs
    first: int
    last: int


@dataclass(frozen=True)
class LiveMemory:
    """The memory at every node as a sum over labels of groups and pairs of edges of a graph."""

    moments: int
    groups: tuple[HeldBytes, ...]
    edges: tuple[HeldBytes, ...]


def live_memory(problem: TilingProblem, ruled: RuledGraph) -> LiveMemory:
    """The sums of `memory_at` by labels."""
    made = _Made(problem, ruled)
    alive, end = lives(problem), len(problem.nodes) - 1
    for number, array in enumerate(problem.arrays):
        labels, group = ruled.arrays[number], ruled.array_groups[number]
        if array.shares is None:
            made.groups.append(HeldBytes(group, made.local(array, labels), *alive[number]))
        if array.kept_item_bytes:
            kept = replace(array, item_bytes=array.kept_item_bytes)
            made.groups.append(HeldBytes(group, made.local(kept, labels), 0, end))
    for moment, node in enumerate(problem.nodes):
        for name in dict.fromkeys(node.inputs):
            made.read(moment, name)
        for at, name in enumerate(node.outputs):
            made.made(moment, name, at, alive[made.place[name]])
    return LiveMemory(len(problem.nodes), tuple(made.groups), tuple(made.edges))


class _Made:
    """Tables that are equal are made once."""

    def __init__(self, problem: TilingProblem, ruled: RuledGraph) -> None:
        self.problem, self.ruled = problem, ruled
        self.sizes = tuple(axis.size for axis in problem.mesh)
        self.place = {array.id: number for number, array in enumerate(problem.arrays)}
        self.edge_at = {(edge.one, edge.other): number for number, edge in enumerate(ruled.graph.edges)}
        self.known: dict[object, Costs] = {}
        self.groups: list[HeldBytes] = []
        self.edges: list[HeldBytes] = []

    def local(self, array: TiledArray, tilings: Sequence[ArrayTiling]) -> Costs:
        """Bytes of a worker's part, by tilings."""
        size = prod(array.shape) * array.item_bytes
        return np.array([size // cuts_of(tiling, self.sizes) for tiling in tilings], dtype=np.int64)

    def read(self, moment: int, name: str) -> None:
        """What the node holds of an input in other tilings than that of the array."""
        array, labels, node = self._ends(moment, name)
        inputs = self.problem.nodes[moment].inputs
        readings = tuple(at for at, read in enumerate(inputs) if read == name)
        key = ("read", array.shape, array.item_bytes, id(labels), id(node), readings)
        if key not in self.known:
            table = np.zeros((len(labels), len(node)), dtype=np.int64)
            for column, label in enumerate(node):
                for tiling in dict.fromkeys(label.reads[at] for at in readings):
                    other = np.array([own != tiling for own in labels])
                    table[:, column] += other * self.local(array, (tiling,))
            self.known[key] = table
        ends = (self.ruled.array_groups[self.place[name]], self.ruled.node_groups[moment])
        self.edges.append(HeldBytes(self.edge_at[ends], self.known[key], moment, moment))

    def made(self, moment: int, name: str, at: int, alive: tuple[int, int]) -> None:
        """What the node makes in another tiling than that of the array, which then has memory of its own."""
        array, labels, node = self._ends(moment, name)
        key = ("made", array.shape, array.item_bytes, id(labels), id(node), at)
        if key not in self.known:
            makes = [label.makes[at] for label in node]
            other = np.array([[own != made for own in labels] for made in makes])
            self.known[key] = other * self.local(array, makes)[:, None]
            self.known["own", *key] = other * self.local(array, labels)
        ends = (self.ruled.node_groups[moment], self.ruled.array_groups[self.place[name]])
        self.edges.append(HeldBytes(self.edge_at[ends], self.known[key], moment, moment))
        if array.shares is not None:
            self.edges.append(HeldBytes(self.edge_at[ends], self.known["own", *key], *alive))

    def _ends(self, moment: int, name: str) -> tuple[TiledArray, tuple[ArrayTiling, ...], tuple[NodeLabel, ...]]:
        number = self.place[name]
        return self.problem.arrays[number], self.ruled.arrays[number], self.ruled.nodes[moment]
