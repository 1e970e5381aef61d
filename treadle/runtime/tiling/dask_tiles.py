"""Arrays of Dask cut into a tile for each worker of a cluster, and operators on them.

A tile is an array of Dask on one worker, in chunks that fit into its memory; so arrays may be larger than the memory of
all workers. Chunks are annotated with the name of their worker, which Dask prefers but may leave when it has died.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import prod
from typing import Any

import dask.array as da
import numpy as np
from dask.base import annotate

from treadle.runtime.tiling.tiles import Region, TileMap, inside, meet, shape_of

CHUNK_BYTES = 32 * 2**20
"""Most that one chunk has: several of them lie in a worker's memory at a time."""


@dataclass(frozen=True)
class DaskTiles:
    """An array: each worker's region and its values, None where it holds nothing. `valid` are the rows that a filter
    has kept, tiled as axis 0; `second` is the other copy of two."""

    regions: TileMap
    parts: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: str
    valid: DaskTiles | None = None
    second: DaskTiles | None = None

    def copies(self) -> Iterator[DaskTiles]:
        yield self
        if self.second is not None:
            yield self.second

    def with_second(self, copy: DaskTiles) -> DaskTiles:
        return replace(self, second=copy)


_NAMES: ContextVar[Sequence[Any]] = ContextVar("names of workers", default=())


@contextmanager
def names_of_workers(names: Sequence[Any]) -> Iterator[None]:
    """Inside, worker w is the one that the cluster calls `names[w]`."""
    mark = _NAMES.set(names)
    try:
        yield
    finally:
        _NAMES.reset(mark)


@contextmanager
def on(worker: int) -> Iterator[None]:
    """Tasks that are made inside prefer this worker."""
    names = _NAMES.get()
    with annotate(workers=[names[worker] if names else worker], allow_other_workers=True):
        yield


def chunked(region: Region, dtype: str) -> tuple[tuple[int, ...], ...]:
    """Chunks of a tile, by axes: whole where it is small, else cut along its first axes."""
    shape = shape_of(region)
    chunks: list[tuple[int, ...]] = [(n,) for n in shape]
    most = max(1, CHUNK_BYTES // np.dtype(dtype).itemsize)
    for axis, n in enumerate(shape):
        line = prod(shape[axis + 1 :])
        rows = max(1, most // max(1, line))
        if n * line <= most:
            break
        chunks[axis] = tuple(min(rows, n - first) for first in range(0, n, rows))
    return tuple(chunks)


def taken(array: DaskTiles, region: Region, worker: int) -> Any:
    """A region of an array on a worker: its own copy where it has it, else parts cut off where they lie."""
    for copy in array.copies():
        tile = copy.regions[worker]
        if meet(tile, region) == region and tile is not None:
            with on(worker):
                return _cut(copy.parts[worker], region, tile)
    pieces = []
    for other in _cover(array.regions, region, worker):
        tile = array.regions[other]
        part = meet(tile, region)
        if part is not None and tile is not None:
            with on(other):
                pieces.append((part, _cut(array.parts[other], part, tile)))
    with on(worker):
        here = partial(_here, worker)
        return _put_together([(part, da.map_blocks(here, piece, dtype=array.dtype)) for part, piece in pieces], 0)


def _here(worker: int, tile: Any) -> Any:
    """The tile as it is. Dask computes what looks the same once: with its number every worker makes a copy of its own,
    instead of one that makes it for all."""
    return tile


def retiled(array: DaskTiles, target: TileMap) -> DaskTiles:
    """The array in another tiling: each worker takes what it lacks."""
    parts = [None if region is None else rechunked(array, region, worker) for worker, region in enumerate(target)]
    valid = None if array.valid is None else retiled(array.valid, rows_of(target))
    return DaskTiles(target, tuple(parts), array.shape, array.dtype, valid)


def assembled(array: DaskTiles) -> Any:
    """The whole array, as one of Dask."""
    if not any(region is not None for region in array.regions):
        return da.zeros(array.shape, dtype=array.dtype)
    whole = tuple((0, n) for n in array.shape)
    pieces = [(array.regions[w], array.parts[w]) for w in _cover(array.regions, whole, -1)]
    return _put_together(pieces, 0)


def rows_of(tiles: TileMap) -> TileMap:
    """The rows of each tile."""
    return tuple(None if each is None else each[:1] for each in tiles)


def summed(layers: Sequence[DaskTiles], target: TileMap, combine: np.ufunc | None) -> DaskTiles:
    """Partial results put together in a tiling: each worker takes its region of every layer, and combines them."""
    first, parts = layers[0], []
    for worker, region in enumerate(target):
        pieces = [rechunked(layer, region, worker) for layer in layers] if region is not None else []
        with on(worker):
            more = partial(da.map_blocks, combine, dtype=first.dtype)
            parts.append(reduce(more, pieces) if pieces else None)
    valid = None if first.valid is None else retiled(first.valid, rows_of(target))
    return DaskTiles(target, tuple(parts), first.shape, first.dtype, valid)


def rechunked(array: DaskTiles, region: Region, worker: int) -> Any:
    """A region of an array on a worker, in the chunks of a tile."""
    part = taken(array, region, worker)
    with on(worker):
        return part.rechunk(chunked(region, array.dtype))


def _cut(part: Any, region: Region, tile: Region) -> Any:
    return part if region == tile else part[inside(region, tile)]


def _cover(regions: TileMap, region: Region, worker: int) -> list[int]:
    """Workers that hold `region` together; of several with the same tile `worker` itself, else the first."""
    order = sorted(range(len(regions)), key=lambda each: (each != worker, each))
    chosen: dict[Region, int] = {}
    for each in order:
        tile = regions[each]
        if tile is not None and meet(tile, region) is not None:
            chosen.setdefault(tile, each)
    return list(chosen.values())


def _put_together(pieces: list[tuple[Region | None, Any]], axis: int) -> Any:
    """One array made of the pieces of a grid."""
    if len(pieces) == 1:
        return pieces[0][1]
    starts = sorted({region[axis][0] for region, _ in pieces if region is not None})
    lines = []
    for start in starts:
        line = [each for each in pieces if each[0] is not None and each[0][axis][0] == start]
        lines.append(_put_together(line, axis + 1))
    return lines[0] if len(lines) == 1 else da.concatenate(lines, axis=axis)
