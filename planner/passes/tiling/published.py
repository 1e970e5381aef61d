"""The tiling graph of Spartan: each operator becomes a group with one tile node for each tiling of its result.

A join_update is a copy group for each input, with the one tiling in which its tasks read it, a placeholder, and the
group of its result. Views have hard edges to their source. A second copy costs its making, on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.capacity import Capacity
from treadle.planner.passes.tiling.graph import FORBIDDEN, Costs, TileEdge, TileGroup, TilingGraph
from treadle.planner.passes.tiling.lifetimes import moments
from treadle.planner.passes.tiling.problem import ArrayNode, ArrayTiling, TilingProblem
from treadle.planner.passes.tiling.published_costs import WHOLE, Moved, PublishedCosts
from treadle.planner.passes.tiling.sound import check_problem
from treadle.planner.passes.tiling.tile_maps import COPIES, TileMaps, copies, tiles, volumes


@dataclass(frozen=True)
class PublishedGraph:
    """`places` are the groups of the problem's arrays. `memory` and `second` limit a worker's bytes at each moment and
    those of second copies; both are empty where nothing is limited."""

    graph: TilingGraph
    places: tuple[int, ...]
    memory: tuple[Capacity, ...]
    second: tuple[Capacity, ...]

    @property
    def capacities(self) -> tuple[Capacity, ...]:
        return (*self.memory, *self.second)

    def tilings(self, choice: Sequence[int]) -> tuple[ArrayTiling, ...]:
        """The tilings of the problem's arrays in a choice of a label of each group."""
        return tuple((self.graph.groups[place].labels[choice[place]],) for place in self.places)


def published_graph(problem: TilingProblem) -> PublishedGraph:
    """The graph of a published problem. Raises InputError for a problem that has none."""
    return _Builder(problem).built()


def labels_of(problem: TilingProblem, maps: TileMaps, node: ArrayNode) -> tuple[str, ...]:
    """The tilings that the result of a node may have. Raises InputError where it is fixed to none of them."""
    array = maps.arrays[node.outputs[0]]
    labels = (*(f"S{axis}" for axis in range(max(1, len(array.shape)))), *(("B", *COPIES) if array.shape[1:] else ()))
    possible = tuple(label for label in labels if maps.has_place(array.id, label))
    if array.fixed is not None:
        if array.fixed[0] not in possible:
            raise InputError(f"found fixed {array.fixed[0]}, expected one of {', '.join(possible)}", where=array.id)
        return (array.fixed[0],)
    if node.operator == "value":
        return ("S0",)
    fits = array.shape[1:] and 0 < prod(array.shape) * array.item_bytes <= problem.dup_bytes
    return possible if fits else tuple(label for label in possible if label not in COPIES)


def reading(node: ArrayNode, place: int) -> str:
    """How the tasks of a join_update read an input: the label of its copy group."""
    axis = node.axes[place]
    return f"S{axis}" if axis >= 0 else WHOLE


class _Builder:
    def __init__(self, problem: TilingProblem) -> None:
        check_problem(problem)
        self.problem, self.maps = problem, TileMaps(problem)
        self.costs = PublishedCosts(self.maps)
        self.groups: list[TileGroup] = []
        self.edges: dict[tuple[int, int], TileEdge] = {}
        self.place: dict[str, int] = {}
        self.tables: dict[object, Costs] = {}

    def built(self) -> PublishedGraph:
        for node in self.problem.nodes:
            self._add(node)
        return PublishedGraph(
            graph=TilingGraph(tuple(self.groups), tuple(self.edges.values())),
            places=tuple(self.place[array.id] for array in self.problem.arrays),
            memory=self._memory(),
            second=self._second(),
        )

    def _add(self, node: ArrayNode) -> None:
        name, costs, model = node.outputs[0], self.costs, self.problem.model
        join = self._joined(node) if node.operator == "join_update" else 0
        labels = labels_of(self.problem, self.maps, node)
        own = [getattr(costs.second_copy(name, label), model) for label in labels]
        kinds = tuple(self.maps.kind(each) for each in (*node.inputs, name))
        key = (node.operator, node.axes, node.update, node.observed_update, kinds)
        self.place[name] = place = self._group(name, labels, own)
        reads = [self.place[read] for read in node.inputs]
        match node.operator:
            case "map":
                for one, read in zip(reads, node.inputs, strict=True):
                    self._read(
                        one, place, partial(costs.map_read, read, name), ("map", self.maps.kind(read), kinds[-1])
                    )
            case "fold" | "scan":
                self._read(reads[0], place, lambda t, u: costs.fold(node, t, u, model).moved, key)
            case "filter" | "slice" | "swapaxis":
                self._view(reads[0], place, partial(self.maps.source_label, name))
                for one, mask in zip(reads[1:], node.inputs[1:], strict=True):
                    self._read(one, place, partial(costs.mask_read, mask, name), key)
            case "join_update":
                self._read(join, place, lambda _, u: costs.update(node, u), key)

    def _joined(self, node: ArrayNode) -> int:
        """The copy groups of a join_update and its placeholder, which is returned."""
        copies = []
        kinds = tuple(self.maps.kind(each) for each in node.inputs)
        for number, read in enumerate(node.inputs):
            copies.append(self._group(f"{node.id}:{number}", (reading(node, number),), [0]))
            self._read(self.place[read], copies[-1], partial(self._join_read, node, number), (number, node.axes, kinds))
        join = self._group(f"{node.id}:join", ("join",), [0])
        for copy in copies:
            self._read(copy, join, lambda _, __: Moved(0, 0), ())
        return join

    def _join_read(self, node: ArrayNode, number: int, t: str, _: str) -> Moved:
        return self.costs.join_read(node, number, t)

    def _group(self, name: str, labels: tuple[str, ...], own: Sequence[int]) -> int:
        self.groups.append(TileGroup(name, labels, np.array(own, dtype=np.int64)))
        return len(self.groups) - 1

    def _read(self, one: int, other: int, count: Callable[[str, str], Moved], key: object) -> None:
        """The edge of one reading, added to what the node's other readings of the same array cost. Readings with the
        same `key` and labels cost the same."""
        before, after = self.groups[one].labels, self.groups[other].labels
        whole = (key, before, after)
        if whole not in self.tables:
            rows = [[getattr(count(t, u), self.problem.model) for u in after] for t in before]
            self.tables[whole] = np.array(rows, dtype=np.int64).reshape(len(before), len(after))
        edge = self.edges.get((one, other)) or TileEdge(one, other, np.zeros((len(before), len(after)), np.int64))
        self.edges[one, other] = replace(edge, costs=edge.costs + self.tables[whole])

    def _view(self, one: int, other: int, source: Callable[[str], str | None]) -> None:
        """The edge that allows each label of a view only with that of its source."""
        rows = [
            [0 if source(u) == t else FORBIDDEN for u in self.groups[other].labels] for t in self.groups[one].labels
        ]
        self.edges[one, other] = TileEdge(one, other, np.array(rows, dtype=np.int64), view=True, hard=True)

    def _memory(self) -> tuple[Capacity, ...]:
        if (limit := self.problem.memory_bytes) is None:
            return ()
        bytes_of = {
            array.id: (self.place[array.id], self._bytes(array.id, partial(local_bytes, self.maps, array.id)))
            for array in self.problem.arrays
            if not self.maps.is_view(array.id)
        }
        return tuple(Capacity(tuple(bytes_of[name] for name in alive), limit) for alive in moments(self.problem))

    def _second(self) -> tuple[Capacity, ...]:
        rows = [
            (self.place[array.id], self._bytes(array.id, partial(second_bytes, self.maps, array.id)))
            for array in self.problem.arrays
            if set(self._labels(array.id)) & set(COPIES) and not self.maps.is_view(array.id)
        ]
        return (Capacity(tuple(rows), self.problem.dup_bytes),) if rows else ()

    def _labels(self, name: str) -> tuple[str, ...]:
        return self.groups[self.place[name]].labels

    def _bytes(self, name: str, count: Callable[[str], int]) -> Costs:
        return np.array([count(label) for label in self._labels(name)], dtype=np.int64)


def local_bytes(maps: TileMaps, name: str, label: str) -> int:
    """Bytes of an array that is no view at worker 0, which has the largest tile of every array."""
    held = (tiles(maps.shape(name), copy, maps.workers)[:1] for copy in copies(label))
    return maps.arrays[name].item_bytes * sum(int(volumes(boxes)[0]) for boxes in held)


def second_bytes(maps: TileMaps, name: str, label: str) -> int:
    """Bytes of the second copy of an array, all workers together."""
    return maps.bytes(name) if label in COPIES and not maps.is_view(name) else 0
