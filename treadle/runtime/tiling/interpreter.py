"""Plans of arrays, run tile by tile on virtual workers of this process: the reference of values and of bytes moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Protocol

import numpy as np

from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.runtime.tiling.actions import Actions
from treadle.runtime.tiling.phases import TiledProgram
from treadle.runtime.tiling.published import PublishedProgram
from treadle.runtime.tiling.ruled import RuledProgram
from treadle.runtime.tiling.tasks import Array, MovedCount, MovedEdge, Tile, TileKey, TilePhase, TileStore, stitched
from treadle.runtime.tiling.tiles import Region, TileMap, meet, whole


@dataclass(frozen=True)
class TiledOutcome:
    """Arrays that the program returns, by id; what moved between workers on each edge; of each worker how long it
    computed and what it received; and the tile maps of first copies, by array."""

    outputs: dict[str, Array]
    moved: dict[MovedEdge, MovedCount]
    busy_s: tuple[float, ...]
    received_bytes: tuple[int, ...]
    maps: dict[str, TileMap]

    @property
    def elements(self) -> int:
        return sum(each.elements for each in self.moved.values())

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.moved.values())


@dataclass
class RunRecord:
    """What is known after some operators: what has moved, and the tile maps of the arrays made so far."""

    moved: dict[MovedEdge, MovedCount] = field(default_factory=dict)
    maps: dict[str, TileMap] = field(default_factory=dict)

    def note(self, phase: TilePhase, counts: tuple[MovedCount, ...]) -> None:
        for edge, count in zip(phase.edges, counts, strict=False):
            if count.elements:
                self.moved[edge] = self.moved.get(edge, MovedCount()).plus(count)


class TileCrew(Protocol):
    """Workers that run phases together. `maps` is what they hold."""

    maps: dict[TileKey, TileMap]

    def run(self, phase: TilePhase) -> list[tuple[MovedCount, ...]]:
        """What the reads of each worker have moved."""

    def forget(self, keys: list[TileKey]) -> None:
        """Give up what nothing reads any more."""

    def collect(self, key: TileKey) -> list[Tile]:
        """Tiles that cover an array."""

    def busy_s(self) -> tuple[float, ...]:
        """How long each worker has computed."""

    def received_bytes(self) -> tuple[int, ...]:
        """What each worker has received from others."""


@dataclass
class VirtualCrew:
    """Workers that are stores of this process."""

    workers: int
    values: Mapping[str, Array]
    maps: dict[TileKey, TileMap] = field(default_factory=dict)
    stores: list[TileStore] = field(init=False)
    received: list[int] = field(init=False)

    def __post_init__(self) -> None:
        act = Actions(self.values).act

        self.received = [0] * self.workers
        self.stores = [
            TileStore(worker, partial(self._fetch, worker), self.maps, act) for worker in range(self.workers)
        ]

    def _fetch(self, reader: int, worker: int, key: TileKey, region: Region) -> Tile:
        tile = self.stores[worker].tiles[key].part(region)
        self.received[reader] += tile.data.nbytes
        return tile

    def run(self, phase: TilePhase) -> list[tuple[MovedCount, ...]]:
        return [store.run(phase) for store in self.stores]

    def forget(self, keys: list[TileKey]) -> None:
        for key in keys:
            del self.maps[key]
            for store in self.stores:
                store.tiles.pop(key, None)

    def collect(self, key: TileKey) -> list[Tile]:
        return [
            self.stores[worker].tiles[key] for worker in distinct(self.maps[key]) if key in self.stores[worker].tiles
        ]

    def busy_s(self) -> tuple[float, ...]:
        return tuple(store.busy_s for store in self.stores)

    def received_bytes(self) -> tuple[int, ...]:
        return tuple(self.received)


def run(decisions: TilingDecisions, *, values: Mapping[str, Array] | None = None) -> TiledOutcome:
    """Run a plan of arrays on as many virtual workers as its mesh has. `values` are the arrays that are not in the
    plan. Raises InputError for operators that do not run on tiles."""
    crew = VirtualCrew(prod(axis.size for axis in decisions.problem.mesh), values or {})
    record, program = RunRecord(), program_of(decisions, crew.maps)
    for place in range(len(decisions.problem.nodes)):
        run_node(program, crew, place, record)
    return outcome(program, crew, record)


def program_of(decisions: TilingDecisions, maps: dict[TileKey, TileMap]) -> PublishedProgram | RuledProgram:
    """The phases of a plan, for workers that hold `maps`."""
    return (PublishedProgram if decisions.problem.published else RuledProgram)(decisions, maps)


def run_node(program: PublishedProgram | RuledProgram, crew: TileCrew, place: int, record: RunRecord) -> None:
    """Run one operator to its end, count what it moves, and give up what is read no more."""
    decisions = program.decisions
    node = decisions.problem.nodes[place]
    for phase in program.phases(node, decisions.nodes[place]):
        for counts in crew.run(phase):
            record.note(phase, counts)
        crew.maps[phase.makes] = phase.known
    record.maps |= {name: crew.maps[TileKey(name)] for name in node.outputs}
    gone = program.gone[place]
    crew.forget([key for key in crew.maps if key.name in gone or key.part not in ("", "second")])


def outcome(program: TiledProgram, crew: TileCrew, record: RunRecord) -> TiledOutcome:
    """The results, put together from their tiles."""
    outputs = {name: _assembled(program, crew, name) for name in dict.fromkeys(program.decisions.problem.outputs)}
    return TiledOutcome(outputs, record.moved, crew.busy_s(), crew.received_bytes(), record.maps)


def _assembled(program: TiledProgram, crew: TileCrew, name: str) -> Array:
    array = program.arrays[name]
    pieces = crew.collect(TileKey(name))
    if not pieces:
        return np.empty(array.shape, array.dtype)
    made = stitched(whole(array.shape), pieces)
    return made.data if made.valid is None else made.data[made.valid]


def distinct(tiles: TileMap) -> Iterable[int]:
    """Workers whose tiles cover an array together, without those that hold what an earlier one has."""
    seen: list[Region] = []
    for worker, tile in enumerate(tiles):
        if tile is not None and not any(meet(tile, other) == tile for other in seen):
            seen.append(tile)
            yield worker
