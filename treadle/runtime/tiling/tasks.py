"""What one worker holds, and how it does its part of an operator: read regions, compute, store a tile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.problem import ArrayNode
from treadle.runtime.tiling.functions import combine_of
from treadle.runtime.tiling.tiles import Region, TileMap, inside, meet, shape_of, size, without

Array = np.ndarray[Any, Any]


class TileKey(NamedTuple):
    """An array, or what an operator makes before it becomes one. `part` is that of a copy or an intermediate value."""

    name: str
    part: str = ""


class MovedEdge(NamedTuple):
    """Who pays for what moves: as an edge of the decisions."""

    array: str
    node: str
    reading: int | None


@dataclass(frozen=True)
class Tile:
    """The values of a region. `valid` marks the rows that a filter has kept; one that is `absent` has no values, as
    the largest of no rows."""

    region: Region
    data: Array
    valid: Array | None = None
    absent: bool = False

    def part(self, region: Region) -> Tile:
        """A region of this tile; the values stay where they are."""
        if region == self.region:
            return self
        where = inside(region, self.region)
        return Tile(region, self.data[where], None if self.valid is None else self.valid[where[0]], self.absent)


@dataclass(frozen=True)
class Read:
    """A region of an array that a task needs, taken from copies by their keys: first what its worker has of any, the
    rest of the first copy from the workers `among`. Where it is `merged`, the values that all of them have are combined
    by the function of the node."""

    keys: tuple[TileKey, ...]
    region: Region
    among: tuple[int, ...] | None = None
    merged: bool = False


@dataclass(frozen=True)
class TilePhase:
    """What all workers do at once: worker w reads `reads[w]`, applies the action to it and stores tile `regions[w]` as
    `makes`, of which there is `known` afterwards. `edges` pay for the reads by their places."""

    makes: TileKey
    action: str
    regions: TileMap
    reads: tuple[tuple[Read, ...], ...]
    edges: tuple[MovedEdge, ...] = ()
    node: ArrayNode | None = None
    extra: tuple[Any, ...] = ()
    before: TileMap = ()
    """What earlier phases have stored under the same key."""

    @property
    def known(self) -> TileMap:
        pairs = zip(self.regions, self.before or (None,) * len(self.regions), strict=True)
        return tuple(old if new is None else new for new, old in pairs)


class MovedCount(NamedTuple):
    """What came from other workers."""

    elements: int = 0
    bytes: int = 0

    def plus(self, other: MovedCount) -> MovedCount:
        return MovedCount(self.elements + other.elements, self.bytes + other.bytes)


@dataclass
class TileStore:
    """Tiles of one worker. `fetch(worker, key, region)` returns a part of a tile of another one, `maps` says what there
    is, and `act` applies an action."""

    worker: int
    fetch: Callable[[int, TileKey, Region], Tile]
    maps: dict[TileKey, TileMap]
    act: Callable[[TilePhase, Region, list[Tile]], Tile]
    tiles: dict[TileKey, Tile] = field(default_factory=dict)
    busy_s: float = 0.0

    def run(self, phase: TilePhase) -> tuple[MovedCount, ...]:
        """Do this worker's part; returns what each read has moved."""
        region = phase.regions[self.worker]
        if region is None:
            return ()
        found, moved = [], []
        for read in phase.reads[self.worker]:
            tile, count = self.merge(read, combine_of(phase.node)) if read.merged and phase.node else self.read(read)
            found.append(tile)
            moved.append(count)
        start = time.perf_counter()
        self.tiles[phase.makes] = self.act(phase, region, found)
        self.busy_s += time.perf_counter() - start
        return tuple(moved)

    def read(self, read: Read) -> tuple[Tile, MovedCount]:
        """A region, stitched from tiles, and what of it came from others."""
        own = [self.tiles[key] for key in read.keys if key in self.tiles]
        for tile in own:
            if meet(tile.region, read.region) == read.region:
                return tile.part(read.region), MovedCount()
        here = [tile.part(part) for tile in own if (part := meet(tile.region, read.region)) is not None]
        there = list(self._fetched(read, [tile.region for tile in here]))
        return stitched(read.region, [*here, *there]), _moved(there)

    def _fetched(self, read: Read, held: Iterable[Region]) -> Iterable[Tile]:
        lacking = [read.region]
        for hole in held:
            lacking = [part for region in lacking for part in without(region, hole)]
        tiles = self.maps[read.keys[0]]
        for worker in range(len(tiles)) if read.among is None else read.among:
            if worker == self.worker or not lacking or (theirs := tiles[worker]) is None:
                continue
            yield from (
                self.fetch(worker, read.keys[0], part)
                for region in lacking
                if (part := meet(region, theirs)) is not None
            )
            lacking = [part for region in lacking for part in without(region, theirs)]

    def merge(self, read: Read, combine: Callable[..., Any] | None) -> tuple[Tile, MovedCount]:
        """A region in which the values of all tiles are combined, and what of it came from others."""
        tiles = self.maps[read.keys[0]]
        pieces, there = [], []
        for worker in range(len(tiles)) if read.among is None else read.among:
            part = meet(tiles[worker], read.region)
            if part is None:
                continue
            if worker == self.worker:
                pieces.append(self.tiles[read.keys[0]].part(part))
            else:
                there.append(self.fetch(worker, read.keys[0], part))
                pieces.append(there[-1])
        return accumulated(read.region, pieces, combine), _moved(there)


def stitched(region: Region, pieces: list[Tile]) -> Tile:
    """One tile made of parts that cover it, each element at least once."""
    if len(pieces) == 1 and pieces[0].region == region:
        return pieces[0]
    data = np.empty(shape_of(region), pieces[0].data.dtype if pieces else np.float64)
    valid = np.zeros(data.shape[0], bool) if any(piece.valid is not None for piece in pieces) else None
    for piece in pieces:
        where = inside(piece.region, region)
        data[where] = piece.data
        if valid is not None:
            valid[where[0]] = piece.valid
    return Tile(region, data, valid)


def accumulated(region: Region, pieces: list[Tile], combine: Callable[..., Any] | None) -> Tile:
    """One tile in which the first value of an element is stored and later ones are combined with it, in the order of
    workers; so no function needs a neutral element."""
    pieces = [piece for piece in pieces if not piece.absent]
    if len(pieces) == 1 and pieces[0].region == region:
        return pieces[0]
    if not pieces:
        raise InputError("nothing is left of an array whose largest or smallest element is asked for")
    data = np.empty(shape_of(region), pieces[0].data.dtype)
    written = np.zeros(data.shape, bool)
    valid = np.zeros(data.shape[0], bool) if any(piece.valid is not None for piece in pieces) else None
    for piece in pieces:
        where = inside(piece.region, region)
        known = written[where]
        if not known.any():
            data[where] = piece.data
        elif combine is None:
            raise InputError("several workers have made the same elements, and no function combines them")
        else:
            data[where] = np.where(known, combine(data[where], piece.data), piece.data)
        written[where] = True
        if valid is not None:
            valid[where[0]] = piece.valid
    return Tile(region, data, valid)


def _moved(pieces: list[Tile]) -> MovedCount:
    return MovedCount(sum(size(piece.region) for piece in pieces), sum(piece.data.nbytes for piece in pieces))
