"""Plans of arrays on real processes: one for each worker and a master, which runs one operator at a time.

A worker serves its tiles to the others on a socket of its own and takes phases from the master. What it receives is
counted where it arrives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from treadle.host.scratch import scratch
from treadle.planner.errors import CheckFailed, TreadleError
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.runtime.launch import launch
from treadle.runtime.tiling.actions import Actions
from treadle.runtime.tiling.checkpoints import (
    SavedRun,
    TileCheckpoint,
    begin,
    clear,
    complete,
    digest_of,
    load_tiles,
    newest,
    save_tiles,
)
from treadle.runtime.tiling.interpreter import RunRecord, TiledOutcome, distinct, outcome, program_of, run_node
from treadle.runtime.tiling.tasks import Array, MovedCount, MovedEdge, Tile, TileKey, TilePhase, TileStore
from treadle.runtime.tiling.tiles import Region, TileMap

log = logging.getLogger("treadle")
MASTER = -1
REACH_SECONDS = 60.0
"""For a process to start and listen."""


def run_processes(
    decisions: TilingDecisions,
    *,
    values: Mapping[str, Array] | None = None,
    checkpoint: TileCheckpoint | None = None,
    timeout: float | None = None,
) -> TiledOutcome:
    """Run a plan of arrays with one process for each worker of its mesh.

    With a checkpoint a run in which a process dies goes on from the last one, as long as each attempt has got further.
    Raises CheckFailed where a process died otherwise, LimitError after `timeout` seconds, and what the interpreter
    raises.
    """
    given = values or {}
    digest = digest_of(decisions, given) if checkpoint is not None else ""
    while True:
        before = _done(checkpoint, digest)
        try:
            found = _attempt(decisions, given, checkpoint, digest, timeout)
        except CheckFailed as error:
            if _done(checkpoint, digest) <= before:
                raise
            log.warning("%s; going on after operator %d", error, _done(checkpoint, digest))
            continue
        if checkpoint is not None:
            clear(checkpoint)
        return found


def _done(checkpoint: TileCheckpoint | None, digest: str) -> int:
    found = newest(checkpoint, digest) if checkpoint is not None else None
    return found[1].done if found is not None else 0


def _attempt(
    decisions: TilingDecisions,
    values: Mapping[str, Array],
    checkpoint: TileCheckpoint | None,
    digest: str,
    timeout: float | None,
) -> TiledOutcome:
    workers = prod(axis.size for axis in decisions.problem.mesh)
    with scratch() as folder:
        files = {}
        for number, (name, data) in enumerate(sorted(values.items())):
            files[name] = folder / f"value-{number}.npy"
            np.save(files[name], data, allow_pickle=False)
        arguments = (decisions, folder, files, checkpoint, digest)
        found = launch(workers + 1, _process, arguments, timeout, joined=False)[-1]
    assert isinstance(found, TiledOutcome)
    return found


def _process(
    rank: int,
    world: int,
    decisions: TilingDecisions,
    folder: Path,
    files: Mapping[str, Path],
    checkpoint: TileCheckpoint | None,
    digest: str,
) -> TiledOutcome | None:
    """The last rank is the master, every other one the worker of its number."""
    if rank < world - 1:
        _Worker(rank, folder, files).serve()
        return None
    crew = _ProcessCrew(folder, world - 1)
    record, first = RunRecord(), 0
    found = newest(checkpoint, digest) if checkpoint is not None else None
    if found is not None:
        place, saved = found
        first, record = saved.done, _record_of(saved)
        crew.restore(place, {TileKey(name, part): tiles for name, part, tiles in saved.held})
    program = program_of(decisions, crew.maps)
    for node in range(first, len(decisions.problem.nodes)):
        run_node(program, crew, node, record)
        if checkpoint is not None and (node + 1) % checkpoint.every == 0:
            fresh = begin(checkpoint, node + 1)
            crew.save(fresh)
            complete(checkpoint, fresh, _saved(digest, node + 1, record, crew.maps))
    result = outcome(program, crew, record)
    crew.end()
    return result


def _saved(digest: str, done: int, record: RunRecord, held: Mapping[TileKey, TileMap]) -> SavedRun:
    moved = [(*edge, *count) for edge, count in record.moved.items()]
    return SavedRun(digest, done, moved, [(*key, tiles) for key, tiles in held.items()], record.maps)


def _record_of(saved: SavedRun) -> RunRecord:
    moved = {MovedEdge(*row[:3]): MovedCount(*row[3:]) for row in saved.moved}
    return RunRecord(moved, dict(saved.maps))


@dataclass
class _Worker:
    """One worker: a thread for each process that reads from it, and the master's orders in the main thread."""

    number: int
    folder: Path
    files: Mapping[str, Path]
    peers: dict[int, Connection] = field(default_factory=dict)
    received: int = 0

    def __post_init__(self) -> None:
        values = {name: np.load(file, mmap_mode="r") for name, file in self.files.items()}
        self.store = TileStore(self.number, self._fetch, {}, Actions(values).act)
        self.orders: dict[str, Callable[..., Any]] = {
            "run": self._run,
            "forget": self._forget,
            "save": lambda place: save_tiles(place, self.number, self.store.tiles),
            "restore": self._restore,
            "state": lambda: (self.store.busy_s, self.received),
        }

    def serve(self) -> None:
        """Until the master ends."""
        listener = Listener(str(_address(self.folder, self.number)), "AF_UNIX", backlog=128)
        while True:
            peer = listener.accept()
            if peer.recv() == MASTER:
                Thread(target=self._accept, args=(listener,), daemon=True).start()
                self._obey(peer)
                return
            Thread(target=self._give, args=(peer,), daemon=True).start()

    def _accept(self, listener: Listener) -> None:
        while True:
            peer = listener.accept()
            peer.recv()
            Thread(target=self._give, args=(peer,), daemon=True).start()

    def _give(self, peer: Connection) -> None:
        with suppress(EOFError, OSError):
            while True:
                key, region = peer.recv()
                _send(peer, self.store.tiles[key].part(region))

    def _obey(self, master: Connection) -> None:
        while True:
            word, *arguments = master.recv()
            if word == "end":
                return
            try:
                reply = (True, self.orders[word](*arguments))
            except TreadleError as error:
                reply = (False, error)
            except Exception as error:
                text = " ".join(str(error).split())
                reply = (False, CheckFailed(f"worker {self.number} failed: {type(error).__name__}: {text}"))
            master.send(reply)

    def _run(self, phase: TilePhase, known: TileMap) -> tuple[MovedCount, ...]:
        moved = self.store.run(phase)
        self.store.maps[phase.makes] = known
        return moved

    def _forget(self, keys: list[TileKey]) -> None:
        for key in keys:
            self.store.tiles.pop(key, None)
            self.store.maps.pop(key, None)

    def _restore(self, place: Path, maps: dict[TileKey, TileMap]) -> None:
        self.store.tiles.update(load_tiles(place, self.number))
        self.store.maps.update(maps)

    def _fetch(self, worker: int, key: TileKey, region: Region) -> Tile:
        if worker not in self.peers:
            self.peers[worker] = _reach(self.folder, worker, self.number)
        tile, count = _ask(self.peers[worker], key, region)
        self.received += count
        return tile


@dataclass
class _ProcessCrew:
    """The workers as the master sees them."""

    folder: Path
    workers: int
    maps: dict[TileKey, TileMap] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.orders = [_reach(self.folder, worker, MASTER) for worker in range(self.workers)]

    def run(self, phase: TilePhase) -> list[tuple[MovedCount, ...]]:
        return self._all("run", phase, phase.known)

    def forget(self, keys: list[TileKey]) -> None:
        for key in keys:
            del self.maps[key]
        self._all("forget", keys)

    def collect(self, key: TileKey) -> list[Tile]:
        tiles = self.maps[key]
        found = []
        for worker in distinct(tiles):
            peer = _reach(self.folder, worker, self.workers)
            found.append(_ask(peer, key, tiles[worker])[0])
            peer.close()
        return found

    def busy_s(self) -> tuple[float, ...]:
        return tuple(busy for busy, _ in self._all("state"))

    def received_bytes(self) -> tuple[int, ...]:
        return tuple(received for _, received in self._all("state"))

    def save(self, place: Path) -> None:
        self._all("save", place)

    def restore(self, place: Path, maps: dict[TileKey, TileMap]) -> None:
        self.maps.update(maps)
        self._all("restore", place, maps)

    def end(self) -> None:
        for worker in self.orders:
            worker.send(("end",))

    def _all(self, *order: Any) -> list[Any]:
        """Give an order to all workers and wait until all have done it. Raises the error of the first that failed."""
        for worker in self.orders:
            worker.send(order)
        replies = [worker.recv() for worker in self.orders]
        for good, reply in replies:
            if not good:
                raise reply
        return [reply for _, reply in replies]


def _address(folder: Path, worker: int) -> Path:
    return folder / f"worker-{worker}"


def _reach(folder: Path, worker: int, who: int) -> Connection:
    """A connection to a worker, once it listens."""
    end = time.monotonic() + REACH_SECONDS
    while True:
        try:
            peer = Client(str(_address(folder, worker)), "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise CheckFailed(f"worker {worker} has not started within {REACH_SECONDS:g} s") from None
            time.sleep(0.01)
        else:
            peer.send(who)
            return peer


def _send(peer: Connection, tile: Tile) -> None:
    data = np.ascontiguousarray(tile.data)
    peer.send((data.dtype, tile.data.shape, tile.valid, tile.absent))
    peer.send_bytes(data.reshape(-1).view(np.uint8).data)


def _ask(peer: Connection, key: TileKey, region: Region | None) -> tuple[Tile, int]:
    """A part of a tile of another process, and the bytes that its values came in."""
    peer.send((key, region))
    dtype, shape, valid, absent = peer.recv()
    data = np.empty(shape, dtype)
    count = peer.recv_bytes_into(data.reshape(-1).view(np.uint8).data)
    return Tile(region or (), data, valid, absent), count
