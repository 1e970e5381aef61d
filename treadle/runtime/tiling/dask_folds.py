"""Folds, scans and joins of plans on arrays of Dask, which generated programs of the target `dask` call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import dask.array as da
import msgspec
import numpy as np
from dask.delayed import delayed

from treadle.runtime.tiling.dask_arrays import DaskNode, Words
from treadle.runtime.tiling.dask_tiles import DaskTiles, on, retiled, summed, taken
from treadle.runtime.tiling.functions import combine_of, neutral
from treadle.runtime.tiling.phases import folded_region
from treadle.runtime.tiling.tiles import Region, chunk, coordinates, shape_of


def folded(row: Mapping[str, Any], inputs: Sequence[DaskTiles], reads: Words, tiling: Words) -> DaskTiles:
    """Every worker folds its tile; partial results of a cut axis move to where the result lies."""
    node = DaskNode.of(row)
    source = _read(node, inputs[0], reads)
    axes = tuple(axis % len(source.shape) for axis in node.call.axes)
    layers = _Layers(node, len(source.regions), source.valid if 0 not in axes else None)
    for worker, region in enumerate(source.regions):
        if region is not None:
            with on(worker):
                part = _folded_part(node, source, worker, axes)
            layers.add(tuple(region[axis][0] for axis in axes), worker, folded_region(region, node.call), part)
    return layers.combined(tiling)


def _folded_part(node: DaskNode, source: DaskTiles, worker: int, axes: tuple[int, ...]) -> Any:
    part, region = source.parts[worker], source.regions[worker]
    combine, keep = combine_of(node.call), bool(node.call.params.get("keepdims", False))
    if combine is None:
        drop = [] if keep else list(axes)
        return da.map_blocks(node.applied, part, drop_axis=drop, dtype=node.dtype, meta=node.meta)
    weights = None
    if source.valid is not None and 0 in axes and region is not None:
        kept = taken(source.valid, region[:1], worker).rechunk((part.chunks[0],))
        weights = da.broadcast_to(kept.reshape((-1,) + (1,) * (part.ndim - 1)), part.shape, chunks=part.chunks)
    return da.reduction(
        part, partial(_fold_chunk, node, combine), partial(_fold_more, combine), axis=axes, keepdims=keep,
        dtype=node.dtype, concatenate=True, meta=node.meta, weights=weights,
    )  # fmt: skip


def _fold_chunk(
    node: DaskNode, combine: np.ufunc, tile: Any, weights: Any = None, axis: Any = None, keepdims: bool = True
) -> Any:
    """One chunk folded, of the rows that `weights` keep."""
    one = replace(node, call=msgspec.structs.replace(node.call, params={**node.call.params, "keepdims": True}))
    if weights is None:
        return one.applied(tile)
    rows = tile[weights[(slice(None), *(0,) * (tile.ndim - 1))]]
    try:
        return one.applied(rows)
    except ValueError:
        if len(rows):
            raise
        shape = tuple(1 if each in axis else n for each, n in enumerate(tile.shape))
        return np.full(shape, neutral(combine, np.dtype(node.dtype)), node.dtype)


def _fold_more(combine: np.ufunc, tile: Any, axis: Any = None, keepdims: bool = True) -> Any:
    return combine.reduce(tile, axis=axis, keepdims=keepdims)


def scanned(row: Mapping[str, Any], inputs: Sequence[DaskTiles], reads: Words) -> DaskTiles:
    """Every worker scans its chunks; the last line of what lies before goes on to the next."""
    node = DaskNode.of(row)
    source, axis = _read(node, inputs[0], reads), node.call.axes[0] % len(node.shape)
    lines: dict[Region, Any] = {}
    parts: list[Any] = [None] * len(source.regions)
    starts = {worker: region[axis][0] for worker, region in enumerate(source.regions) if region is not None}
    for worker in sorted(starts, key=lambda each: (starts[each], each)):
        region = source.regions[worker] or ()
        across = region[:axis] + region[axis + 1 :]
        with on(worker):
            before = lines.get(across) if starts[worker] else None
            parts[worker], lines[across] = _scanned_part(node, source.parts[worker], axis, before)
    return node.tiles(source.regions, parts, source.valid)


def _scanned_part(node: DaskNode, part: Any, axis: int, before: Any) -> tuple[Any, Any]:
    """A tile scanned chunk by chunk, and its last line."""
    blocks, first, combine = [], 0, combine_of(node.call)
    for length in part.chunks[axis]:
        block = da.map_blocks(node.applied, _along(part, axis, first, first + length), dtype=node.dtype, meta=node.meta)
        if before is not None:
            line = before.rechunk({each: sizes for each, sizes in enumerate(block.chunks) if each != axis})
            block = da.map_blocks(combine, line, block, chunks=block.chunks, dtype=node.dtype, meta=node.meta)
        before, first = _along(block, axis, length - 1, length), first + length
        blocks.append(block)
    return da.concatenate(blocks, axis=axis), before


def _along(part: Any, axis: int, low: int, high: int) -> Any:
    return part[(*(slice(None),) * axis, slice(low, high))]


def joined(
    row: Mapping[str, Any], inputs: Sequence[DaskTiles], reads: Sequence[Words], makes: Words, tiling: Words
) -> DaskTiles:
    """A task for each worker that joins what it reads; what tasks update in common is combined."""
    node = DaskNode.of(row)
    maps = [node.maps(words, each.shape)[0] for words, each in zip(reads, inputs, strict=True)]
    target = node.maps(makes)[0]
    alone = max(node.call.axes, default=-1) < 0 and tuple(makes) != ("R",) * len(node.mesh)
    layers = _Layers(node, len(target), None)
    for worker in range(1 if alone else len(target)):
        regions = [tiles[worker] for tiles in maps]
        made = target[worker] if not alone else tuple((0, n) for n in node.shape)
        if made is None or None in regions:
            continue
        pieces = [
            taken(each, region, worker) for each, region in zip(inputs, regions, strict=True) if region is not None
        ]
        with on(worker):
            part = _joined_part(node, pieces, made)
        place = coordinates(worker, node.mesh)
        layer = tuple(at for at, word in zip(place, makes, strict=True) if word == "P")
        layers.add(layer, worker, made, part)
    return layers.combined(tiling)


def _joined_part(node: DaskNode, pieces: list[Any], made: Region) -> Any:
    """What one worker makes: by as many tasks as there are chunks along the joined axes, where these can be cut."""
    pairs = list(zip(pieces, node.call.axes, strict=True))
    lengths = {piece.shape[axis] for piece, axis in pairs if axis >= 0}
    rows = made[0][1] - made[0][0] if made else 0
    results = []
    if len(lengths) == 1 and (node.call.update == "all" or lengths == {rows}):
        tasks = max(len(piece.chunks[axis]) for piece, axis in pairs if axis >= 0)
        for low, high in {chunk(next(iter(lengths)), tasks, task): None for task in range(tasks)}:
            tiles = [_along(piece, axis, low, high) if axis >= 0 else piece for piece, axis in pairs]
            above = (high - low,) if node.call.update == "each" else shape_of(made)[:1]
            results.append(_joined_task(node, tiles, (*above, *shape_of(made)[1:])))
    else:
        results.append(_joined_task(node, pieces, shape_of(made)))
    if node.call.update == "each":
        return da.concatenate(results, axis=0) if len(results) > 1 else results[0]
    return reduce(partial(da.map_blocks, combine_of(node.call), dtype=node.dtype, meta=node.meta), results)


def _joined_task(node: DaskNode, tiles: list[Any], shape: tuple[int, ...]) -> Any:
    blocks = [tile.rechunk(-1).to_delayed(optimize_graph=False).item() for tile in tiles]
    return da.from_delayed(delayed(node.applied)(*blocks), shape, dtype=node.dtype)


class _Layers:
    """Partial results of one node: tiles of a layer cover the result together, and layers are combined."""

    def __init__(self, node: DaskNode, workers: int, valid: DaskTiles | None) -> None:
        self.node, self.workers, self.valid = node, workers, valid
        self.found: dict[tuple[int, ...], dict[int, tuple[Region, Any]]] = {}

    def add(self, layer: tuple[int, ...], worker: int, region: Region, part: Any) -> None:
        self.found.setdefault(layer, {})[worker] = region, part

    def combined(self, tiling: Words) -> DaskTiles:
        target = self.node.maps(tiling)[0]
        if not self.found:
            return self._nothing(target)
        layers = []
        for key in sorted(self.found):
            held = [self.found[key].get(worker, (None, None)) for worker in range(self.workers)]
            layers.append(self.node.tiles([region for region, _ in held], [part for _, part in held], self.valid))
        return summed(layers, target, combine_of(self.node.call))

    def _nothing(self, target: tuple[Region | None, ...]) -> DaskTiles:
        """What the function makes of no elements, where a result is wanted."""
        parts = [None if region is None else da.zeros(shape_of(region), dtype=self.node.dtype) for region in target]
        return self.node.tiles(target, parts)


def _read(node: DaskNode, array: DaskTiles, reads: Words) -> DaskTiles:
    """The copy in which a node reads an array, or the array moved to that tiling. A view lies where its source does."""
    target = node.maps(reads, array.shape)[0]
    for copy in array.copies():
        if copy.regions == target:
            return copy
    return array if len(node.mesh) == 1 and array.second is None else retiled(array, target)
