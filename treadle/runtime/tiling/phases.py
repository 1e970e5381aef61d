"""What the phases of operators have in common, on the graph of the paper and by rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.lifetimes import given_up
from treadle.planner.passes.tiling.problem import ArrayNode, ArrayTiling, TiledArray
from treadle.runtime.tiling.tasks import MovedEdge, Read, TileKey, TilePhase
from treadle.runtime.tiling.tiles import Region, TileMap, size, tile_maps


@dataclass
class TiledProgram:
    """A plan's arrays and their tilings by id. `maps` is what the workers hold, kept up to date by who runs phases."""

    decisions: TilingDecisions
    maps: dict[TileKey, TileMap]
    arrays: dict[str, TiledArray] = field(init=False)
    tilings: dict[str, ArrayTiling] = field(init=False)
    mesh: tuple[int, ...] = field(init=False)
    gone: list[list[str]] = field(init=False)
    """For each node the arrays that nothing needs after it."""

    def __post_init__(self) -> None:
        problem = self.decisions.problem
        self.arrays = {array.id: array for array in problem.arrays}
        self.tilings = dict(zip(self.arrays, self.decisions.tilings, strict=True))
        self.mesh = tuple(axis.size for axis in problem.mesh)
        self.gone = given_up(problem)

    def tiles(self, name: str, tiling: ArrayTiling | None = None) -> TileMap:
        """The map of an array in a tiling, by default its own; of the first copy."""
        return tile_maps(self.arrays[name].shape, tiling or self.tilings[name], self.mesh)[0]

    def of_nothing(self, node: ArrayNode) -> bool:
        """Whether an input has no elements though the result has some."""
        return not all(map(self._filled, node.inputs)) and all(map(self._filled, node.outputs))

    def phase_of_nothing(self, node: ArrayNode, made: TileKey, target: TileMap) -> TilePhase:
        inputs = [self.arrays[name] for name in node.inputs]
        shapes = tuple((array.shape, np.dtype(array.dtype)) for array in inputs)
        extra: tuple[Any, ...] = (self.arrays[node.outputs[0]], shapes)
        return TilePhase(made, "of-nothing", target, ((),) * len(target), (), node, extra)

    def _filled(self, name: str) -> bool:
        return all(self.arrays[name].shape)


def edges_of(node: ArrayNode) -> tuple[MovedEdge, ...]:
    """The edge of each input."""
    return tuple(MovedEdge(name, node.id, place) for place, name in enumerate(node.inputs))


def made_by(node: ArrayNode) -> tuple[MovedEdge, ...]:
    """The edge of what a node makes: partial results, updates and second copies are paid there."""
    return (MovedEdge(node.outputs[0], node.id, None),)


def own(key: TileKey, tiles: TileMap) -> tuple[tuple[Read, ...], ...]:
    """Each worker reads its own tile."""
    return each_reads(tiles, (key,))


def each_reads(
    regions: TileMap, keys: tuple[TileKey, ...], *, merged: bool = False, among: tuple[tuple[int, ...], ...] = ()
) -> tuple[tuple[Read, ...], ...]:
    """Each worker reads its region."""
    groups = among or (None,) * len(regions)
    return tuple(
        () if region is None else (Read(keys, region, workers, merged),)
        for region, workers in zip(regions, groups, strict=True)
    )


def folded_region(tile: Region, node: ArrayNode) -> Region:
    """The region of the result to which a tile of the input contributes."""
    folded = {axis % len(tile) for axis in node.axes} if tile else set()
    if node.params.get("keepdims", False):
        return tuple((0, 1) if axis in folded else each for axis, each in enumerate(tile))
    return tuple(each for axis, each in enumerate(tile) if axis not in folded)


def swap_phase(node: ArrayNode, key: TileKey, made: TileKey, tiles: TileMap) -> TilePhase:
    """Each worker sees its tile with two axes in each other's place."""
    regions = tuple(None if tile is None else swapped(tile, *node.axes) for tile in tiles)
    return TilePhase(made, "swapaxis", regions, own(key, tiles), edges_of(node), node)


def swapped(region: Region, one: int, other: int) -> Region:
    """A region in the view in which two axes have each other's place."""
    changed = list(region)
    changed[one], changed[other] = changed[other], changed[one]
    return tuple(changed)


def slice_phase(node: ArrayNode, key: TileKey, made: TileKey, tiles: TileMap) -> TilePhase:
    """Each worker takes from its tile what the slice has of it."""
    cuts = [None if tile is None else seen(tile, node.params["region"]) for tile in tiles]
    regions = tuple(None if cut is None else cut[0] for cut in cuts)
    reads = each_reads(tuple(None if cut is None else cut[1] for cut in cuts), (key,))
    steps = tuple(slice(None, None, step) for _, _, step in node.params["region"])
    return TilePhase(made, "slice", regions, reads, edges_of(node), node, (steps,))


def seen(tile: Region, slices: list[list[int]]) -> tuple[Region, Region] | None:
    """What a slice sees of a tile of its source: in indices of the view, and in those of what it slices."""
    view, source = [], []
    for (start, stop, step), (low, high) in zip(slices, tile, strict=True):
        first, end = max(0, -(-(low - start) // step)), max(0, -(-(min(high, stop) - start) // step))
        view.append((first, end))
        source.append((start + first * step, start + (end - 1) * step + 1))
    return (tuple(view), tuple(source)) if size(tuple(view)) > 0 and all(a < b for a, b in view) else None


def filter_phase(node: ArrayNode, key: TileKey, masks: tuple[TileKey, ...], made: TileKey, tiles: TileMap) -> TilePhase:
    """Each worker keeps its tile, and reads which of its rows count."""
    reads = tuple(() if tile is None else (Read((key,), tile), Read(masks, tile[:1])) for tile in tiles)
    return TilePhase(made, "filter", tiles, reads, edges_of(node), node)
