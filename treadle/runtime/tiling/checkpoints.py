"""Checkpoints of a run between two operators: every worker's tiles and the master's record, all of them or none.

A checkpoint is a folder that is renamed to its name when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from treadle.planner.documents.files import replace_file, write_text
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.runtime.tiling.tasks import Array, Tile, TileKey
from treadle.runtime.tiling.tiles import TileMap

_NAME = re.compile(r"after-(\d{6})")


@dataclass(frozen=True)
class TileCheckpoint:
    """Save after every `every` operators into `folder`; a run starts from what is there."""

    folder: Path
    every: int = 1


class SavedRun(msgspec.Struct, frozen=True):
    """What the master knows after `done` operators: (array, node, reading, elements, bytes) of edges, and the maps of
    what workers hold and of arrays, by name and part."""

    digest: str
    done: int
    moved: list[tuple[str, str, int | None, int, int]]
    held: list[tuple[str, str, TileMap]]
    maps: dict[str, TileMap]


def digest_of(decisions: TilingDecisions, values: Mapping[str, Array]) -> str:
    """The digest of a plan and the arrays it runs on: a checkpoint of others is none."""
    found = hashlib.sha256(msgspec.json.encode(decisions))
    for name in sorted(values):
        found.update(f"{name} {values[name].dtype} {values[name].shape}".encode())
        found.update(np.ascontiguousarray(values[name]).tobytes())
    return found.hexdigest()


def newest(checkpoint: TileCheckpoint, digest: str) -> tuple[Path, SavedRun] | None:
    """The last complete checkpoint of this run. Raises InputError for one that cannot be read."""
    for place in sorted(checkpoint.folder.glob("after-*"), reverse=True):
        if _NAME.fullmatch(place.name):
            try:
                saved = msgspec.json.decode((place / "master.json").read_bytes(), type=SavedRun)
            except (OSError, msgspec.MsgspecError) as error:
                raise InputError(f"is no checkpoint of a run: {error}", where=str(place)) from error
            if saved.digest == digest:
                return place, saved
    return None


def begin(checkpoint: TileCheckpoint, done: int) -> Path:
    """A folder for workers to save into."""
    place = checkpoint.folder / f".after-{done:06}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def complete(checkpoint: TileCheckpoint, fresh: Path, saved: SavedRun) -> None:
    """Make `fresh` the newest checkpoint, and remove those before it."""
    write_text(fresh / "master.json", msgspec.json.encode(saved).decode())
    target = checkpoint.folder / fresh.name[1:]
    shutil.rmtree(target, ignore_errors=True)
    os.replace(fresh, target)
    for other in checkpoint.folder.glob("after-*"):
        if other != target and _NAME.fullmatch(other.name):
            shutil.rmtree(other, ignore_errors=True)


def clear(checkpoint: TileCheckpoint) -> None:
    """Remove all checkpoints, after the end of a run."""
    for place in [*checkpoint.folder.glob("after-*"), *checkpoint.folder.glob(".after-*")]:
        if _NAME.fullmatch(place.name.removeprefix(".")):
            shutil.rmtree(place, ignore_errors=True)
    with suppress(OSError):
        checkpoint.folder.rmdir()


def save_tiles(place: Path, worker: int, tiles: Mapping[TileKey, Tile]) -> None:
    """Write what one worker holds."""
    arrays: dict[str, Any] = {}
    said = []
    for number, (key, tile) in enumerate(tiles.items()):
        arrays[f"data{number}"] = tile.data
        if tile.valid is not None:
            arrays[f"valid{number}"] = tile.valid
        said.append([key.name, key.part, tile.region, tile.absent])
    arrays["said"] = np.frombuffer(json.dumps(said).encode(), np.uint8)
    fresh = place / f".worker-{worker}.npz"
    with open(fresh, "wb") as stream:
        np.savez(stream, **arrays)
    replace_file(fresh, place / f"worker-{worker}.npz")


def load_tiles(place: Path, worker: int) -> dict[TileKey, Tile]:
    """What one worker held. Raises InputError for a file that is none of `save_tiles`."""
    where = place / f"worker-{worker}.npz"
    try:
        with np.load(where, allow_pickle=False) as arrays:
            said = json.loads(arrays["said"].tobytes())
            tiles = {}
            for number, (name, part, region, absent) in enumerate(said):
                bounds = tuple((int(low), int(high)) for low, high in region)
                valid = arrays.get(f"valid{number}")
                tiles[TileKey(str(name), str(part))] = Tile(bounds, arrays[f"data{number}"], valid, bool(absent))
            return tiles
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read a worker's tiles: {error}", where=str(where)) from error
