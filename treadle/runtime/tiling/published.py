"""The phases of operators on the graph of the paper: one axis of workers, tasks where the tiles lie.

Spartan, section 3.4: the result is created from its tiling, workers fetch what they lack, and updates of several
workers are merged where the result lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import NodeTiling
from treadle.planner.passes.tiling.problem import ArrayNode, ArrayTiling
from treadle.runtime.tiling.phases import (
    TiledProgram,
    each_reads,
    edges_of,
    filter_phase,
    folded_region,
    made_by,
    own,
    slice_phase,
    swap_phase,
)
from treadle.runtime.tiling.tasks import Read, TileKey, TilePhase
from treadle.runtime.tiling.tiles import Region, TileMap, chunk, tile_maps, whole

COPIES = ("", "second")
"""The parts under which copies of an array are stored."""


class PublishedProgram(TiledProgram):
    """The phases of one node after another."""

    def phases(self, node: ArrayNode, tiled: NodeTiling) -> Iterator[TilePhase]:
        """The phases of `node`, to be run in this order. Raises InputError for what does not run on tiles."""
        make = _MAKERS.get(node.operator)
        if make is None or len(node.outputs) != 1:
            raise InputError(f"{node.id}: operator {node.operator} of {node.function} does not run on tiles")
        yield from make(self, node, tiled)

    def _keys(self, name: str) -> tuple[TileKey, ...]:
        return tuple(key for part in COPIES if (key := TileKey(name, part)) in self.maps)

    def _copy(self, name: str, reads: ArrayTiling) -> TileKey:
        """The copy that is tiled as a node reads it: the second one of two only if it is."""
        keys = self._keys(name)
        return keys[1] if len(keys) > 1 and reads[0][1:] != self.tilings[name][0][1:] else keys[0]

    def _new(self, node: ArrayNode, tiled: NodeTiling) -> Iterator[TilePhase]:
        (name,) = node.outputs
        tiles = self.tiles(name)
        yield TilePhase(TileKey(name), node.operator, tiles, ((),) * len(tiles), (), node, (self.arrays[name],))
        yield from self._second_copy(node)

    def _map(self, node: ArrayNode, tiled: NodeTiling) -> Iterator[TilePhase]:
        (name,) = node.outputs
        target = self.tiles(name)
        inputs = [(self._keys(each), self.arrays[each].shape) for each in node.inputs]
        reads = tuple(
            () if region is None else tuple(Read(keys, projected(region, shape)) for keys, shape in inputs)
            for region in target
        )
        yield TilePhase(TileKey(name), "map", target, reads, edges_of(node), node, (self.arrays[name],))
        yield from self._second_copy(node)

    def _fold(self, node: ArrayNode, tiled: NodeTiling) -> Iterator[TilePhase]:
        (name,), (source,) = node.outputs, node.inputs
        target, made, partial = self.tiles(name), TileKey(name), TileKey(node.id, "partial")
        if self.of_nothing(node):
            yield self.phase_of_nothing(node, made, target)
        else:
            key = self._copy(source, tiled.reads[0])
            tiles, edges = self.maps[key], made_by(node)
            regions = tuple(None if tile is None else folded_region(tile, node) for tile in tiles)
            yield TilePhase(partial, "fold", regions, own(key, tiles), edges, node, (self.arrays[name],))
            yield TilePhase(made, "gather", target, each_reads(target, (partial,), merged=True), edges, node)
        yield from self._second_copy(node)

    def _scan(self, node: ArrayNode, tiled: NodeTiling) -> Iterator[TilePhase]:
        (name,), (source,) = node.outputs, node.inputs
        key, local, done = self._copy(source, tiled.reads[0]), TileKey(node.id, "local"), TileKey(node.id, "done")
        tiles, target, edges = self.maps[key], self.tiles(name), made_by(node)
        yield TilePhase(local, "scan", tiles, own(key, tiles), edges, node, (self.arrays[name],))
        yield from chained(node, local, done, tiles)
        yield TilePhase(TileKey(name), "gather", target, each_reads(target, (done,)), edges, node)
        yield from self._second_copy(node)

    def _join(self, node: ArrayNode, tiled: NodeTiling) -> Iterator[TilePhase]:
        (name,) = node.outputs
        target, made, partial = self.tiles(name), TileKey(name), TileKey(node.id, "partial")
        if self.of_nothing(node):
            yield self.phase_of_nothing(node, made, target)
        else:
            regions, reads = zip(*(self._task(node, task) for task in range(len(target))), strict=True)
            yield TilePhase(partial, "join_update", regions, reads, edges_of(node), node, (self.arrays[name],))
            updates = each_reads(target, (partial,), merged=node.update == "all")
            yield TilePhase(made, "gather", target, updates, made_by(node), node)
        yield from self._second_copy(node)

    def _task(self, node: ArrayNode, task: int) -> tuple[Region | None, tuple[Read, ...]]:
        """What a task makes, and what it reads. Without a cut input there is one task, that of worker 0."""
        (name,), tasks, alone = node.outputs, self.mesh[0], max(node.axes, default=-1) < 0
        groups = [
            joined(self.arrays[each].shape, axis, tasks, task)
            for each, axis in zip(node.inputs, node.axes, strict=True)
        ]
        shape = self.arrays[name].shape
        made = whole(shape) if node.update == "all" or alone else joined(shape, 0, tasks, task)
        if made is None or None in groups or (alone and task):
            return None, ()
        pairs = zip(node.inputs, groups, strict=True)
        return made, tuple(Read(self._keys(each), region) for each, region in pairs if region is not None)

    def _view(self, node: ArrayNode, tiled: NodeTiling) -> Iterator[TilePhase]:
        """Tiles of a view are views of tiles: it lives where its source does, each copy of it."""
        (name,) = node.outputs
        for key, part in zip(self._keys(node.inputs[0]), COPIES, strict=False):
            made, tiles = TileKey(name, part), self.maps[key]
            if node.operator == "filter":
                yield filter_phase(node, key, self._keys(node.inputs[1]), made, tiles)
            else:
                yield (slice_phase if node.operator == "slice" else swap_phase)(node, key, made, tiles)

    def _second_copy(self, node: ArrayNode) -> Iterator[TilePhase]:
        (name,) = node.outputs
        for tiles in tile_maps(self.arrays[name].shape, self.tilings[name], self.mesh)[1:]:
            reads = each_reads(tiles, (TileKey(name),))
            yield TilePhase(TileKey(name, COPIES[1]), "gather", tiles, reads, made_by(node), node)


_MAKERS: dict[str, Callable[[PublishedProgram, ArrayNode, NodeTiling], Iterator[TilePhase]]] = {
    "newarray": PublishedProgram._new,
    "value": PublishedProgram._new,
    "map": PublishedProgram._map,
    "fold": PublishedProgram._fold,
    "scan": PublishedProgram._scan,
    "join_update": PublishedProgram._join,
    "slice": PublishedProgram._view,
    "swapaxis": PublishedProgram._view,
    "filter": PublishedProgram._view,
}


def chained(node: ArrayNode, local: TileKey, done: TileKey, tiles: TileMap) -> Iterator[TilePhase]:
    """A scan along a cut axis: first the tiles where it begins, then those behind them with the last line before."""
    axis = node.axes[0] % max(1, len(next((tile for tile in tiles if tile), ((),))))
    before: TileMap = ()
    for start in sorted({tile[axis][0] for tile in tiles if tile is not None}):
        here = tuple(tile if tile is not None and tile[axis][0] == start else None for tile in tiles)
        reads = tuple(() if tile is None else (Read((local,), tile), *_line_before(done, tile, axis)) for tile in here)
        phase = TilePhase(done, "chain", here, reads, made_by(node) * 2, node, before=before)
        yield phase
        before = phase.known


def _line_before(done: TileKey, tile: Region, axis: int) -> Iterator[Read]:
    low = tile[axis][0]
    if low > 0:
        yield Read((done,), (*tile[:axis], (low - 1, low), *tile[axis + 1 :]))


def projected(region: Region, shape: tuple[int, ...]) -> Region:
    """What an output region needs of an input that is broadcast to it, aligned at the last axes."""
    tail = region[len(region) - len(shape) :]
    return tuple((0, 1) if n == 1 else each for n, each in zip(shape, tail, strict=True))


def joined(shape: tuple[int, ...], axis: int, tasks: int, task: int) -> Region | None:
    """What a task of join_update has of an array: a chunk of its axis, or all of it; None where the chunk is empty."""
    if axis < 0:
        return whole(shape)
    region = tuple(chunk(n, tasks, task) if at == axis else (0, n) for at, n in enumerate(shape))
    return region if all(low < high for low, high in region) else None
