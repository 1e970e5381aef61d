"""Element-wise operators and views of plans on arrays of Dask, which generated programs of the target `dask` call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dask.array as da
import msgspec
import numpy as np
from msgspec import convert

from treadle.planner.passes.tiling.problem import ArrayNode
from treadle.runtime.tiling.dask_tiles import DaskTiles, chunked, on, retiled, rows_of, taken
from treadle.runtime.tiling.filled import filled
from treadle.runtime.tiling.functions import called
from treadle.runtime.tiling.phases import seen, swapped
from treadle.runtime.tiling.published import projected
from treadle.runtime.tiling.tiles import Region, TileMap, tile_maps

Words = Sequence[str]
"""A tiling."""


@dataclass(frozen=True)
class DaskNode:
    """An operator, its result and the mesh of workers."""

    call: ArrayNode
    array: str
    shape: tuple[int, ...]
    dtype: str
    mesh: tuple[int, ...]

    @staticmethod
    def of(row: Mapping[str, Any]) -> DaskNode:
        """The node in a row of the table of a generated program."""
        fields = {name: row[name] for name in ("id", "operator", "function", "axes", "params", "update")}
        call = convert({**fields, "inputs": [], "outputs": [row["array"]]}, ArrayNode)
        return DaskNode(call, str(row["array"]), tuple(row["shape"]), str(row["dtype"]), tuple(row["mesh"]))

    @property
    def meta(self) -> Any:
        """A result without elements, from which Dask takes type and rank."""
        return np.empty((0,) * len(self.shape), self.dtype)

    def maps(self, tiling: Words, shape: tuple[int, ...] | None = None) -> tuple[TileMap, ...]:
        """The tile maps of the result, or of another shape, in a tiling."""
        return tile_maps(self.shape if shape is None else shape, tuple(tiling), self.mesh)

    def tiles(
        self, regions: Sequence[Region | None], parts: Sequence[Any], valid: DaskTiles | None = None
    ) -> DaskTiles:
        return DaskTiles(tuple(regions), tuple(parts), self.shape, self.dtype, valid)

    def applied(self, *tiles: Any) -> Any:
        """The function on chunks."""
        return called(self.call, tiles, self.dtype)


def new(row: Mapping[str, Any], values: Mapping[str, Any], tiling: Words) -> DaskTiles:
    """A new array, or one that is given; every worker fills its tile chunk by chunk."""
    node = DaskNode.of(row)
    (regions, *_), parts = node.maps(tiling), []
    for worker, region in enumerate(regions):
        with on(worker):
            parts.append(None if region is None else _new_part(node, values, region))
    return node.tiles(regions, parts)


def _new_part(node: DaskNode, values: Mapping[str, Any], region: Region) -> Any:
    chunks = chunked(region, node.dtype)
    if node.array in values:
        return da.from_array(values[node.array][tuple(slice(*each) for each in region)], chunks=chunks)
    fill = partial(_filled, node, region)
    return da.map_blocks(fill, chunks=chunks, dtype=node.dtype, meta=node.meta)


def _filled(node: DaskNode, region: Region, block_info: Any = None) -> Any:
    where = block_info[None]["array-location"]
    part = tuple((start + low, start + high) for (start, _), (low, high) in zip(region, where, strict=True))
    return filled(node.shape, node.dtype, part, node.call.params)


def mapped(row: Mapping[str, Any], inputs: Sequence[DaskTiles], makes: Words) -> DaskTiles:
    """A function on aligned chunks; inputs that lie otherwise are moved to where the result is made."""
    node = DaskNode.of(row)
    (regions, *_), parts = node.maps(makes), []
    for worker, region in enumerate(regions):
        parts.append(None if region is None else _mapped_part(node, inputs, region, worker))
    kept = [each.valid for each in inputs if each.valid is not None and len(each.shape) == len(node.shape)]
    return node.tiles(regions, parts, retiled(kept[0], rows_of(regions)) if kept else None)


def _mapped_part(node: DaskNode, inputs: Sequence[DaskTiles], region: Region, worker: int) -> Any:
    chunks = chunked(region, node.dtype)
    read = [taken(each, projected(region, each.shape), worker) for each in inputs]
    with on(worker):
        aligned = [part.rechunk(_aligned(chunks, part.shape)) for part in read]
        if not aligned:
            return _new_part(node, {}, region)
        return da.map_blocks(node.applied, *aligned, chunks=chunks, dtype=node.dtype, meta=node.meta)


def _aligned(chunks: tuple[tuple[int, ...], ...], shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    tail = chunks[len(chunks) - len(shape) :]
    return tuple((1,) if n == 1 else each for n, each in zip(shape, tail, strict=True))


def moved(array: DaskTiles, mesh: Sequence[int], tiling: Words) -> DaskTiles:
    """The array in another tiling, with a second copy where that has one."""
    first, *more = tile_maps(array.shape, tuple(tiling), tuple(mesh))
    found = array if array.regions == first else retiled(array, first)
    return found.with_second(retiled(found, more[0])) if more else found


def viewed(row: Mapping[str, Any], inputs: Sequence[DaskTiles]) -> DaskTiles:
    """A slice, swapped axes or a filter: tiles of a view are views of tiles, of both copies where there are two."""
    node, (source, *masks) = DaskNode.of(row), inputs
    first, *more = (_view(node, copy, masks) for copy in source.copies())
    return first.with_second(more[0]) if more else first


def _view(node: DaskNode, source: DaskTiles, masks: Sequence[DaskTiles]) -> DaskTiles:
    if node.call.operator == "filter":
        mask = retiled(masks[0], rows_of(source.regions))
        return node.tiles(source.regions, source.parts, mask if source.valid is None else _both(mask, source.valid))
    return _sliced(node, source) if node.call.operator == "slice" else _swapped(node, source)


def _both(one: DaskTiles, other: DaskTiles) -> DaskTiles:
    pairs = zip(one.parts, retiled(other, one.regions).parts, strict=True)
    return replace(one, parts=tuple(None if a is None else a & b for a, b in pairs))


def _swapped(node: DaskNode, source: DaskTiles) -> DaskTiles:
    one, other = node.call.axes
    regions = [None if region is None else swapped(region, one, other) for region in source.regions]
    parts = [None if part is None else da.swapaxes(part, one, other) for part in source.parts]
    return node.tiles(regions, parts, source.valid)


def _sliced(node: DaskNode, source: DaskTiles) -> DaskTiles:
    slices = node.call.params["region"]
    regions: list[Region | None] = []
    parts: list[Any] = []
    for worker, (region, part) in enumerate(zip(source.regions, source.parts, strict=True)):
        cut = None if region is None else seen(region, slices)
        regions.append(None if cut is None else cut[0])
        if region is None or cut is None:
            parts.append(None)
            continue
        where = [
            slice(low - start, high - start, step)
            for (low, high), (start, _), (_, _, step) in zip(cut[1], region, slices, strict=True)
        ]
        with on(worker):
            parts.append(part[tuple(where)])
    if source.valid is None:
        return node.tiles(regions, parts)
    rows = msgspec.structs.replace(node.call, params={"region": slices[:1]})
    mask = replace(node, call=rows, shape=node.shape[:1], dtype="bool")
    return node.tiles(regions, parts, _sliced(mask, source.valid))
