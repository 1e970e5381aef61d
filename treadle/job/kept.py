"""What a job measures, kept between runs in `treadle/jobs` below XDG_CACHE_HOME (~/.cache).

One file for each thing that is measured on a machine with a number of processes: CPU model, cores, versions of PyTorch
and treadle, the text of what is measured and of what measures it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from treadle.host.cache_folder import cache_folder, make_private, require_private
from treadle.host.cores import cores
from treadle.planner.documents.files import read_text, write_text
from treadle.planner.errors import InputError
from treadle.planner.version import TOOL

T = TypeVar("T")

log = logging.getLogger("treadle.costs")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: tuple[str, ...]
    found: msgspec.Raw


class CostCache:
    """What earlier runs measured; with `fresh` everything is measured anew. `reused`: whether anything was not."""

    def __init__(self, *, fresh: bool) -> None:
        self._fresh, self.reused = fresh, False

    def get(
        self, kind: type[T], key: tuple[str, ...], measure: Callable[[], T], keep: Callable[[T], bool] = lambda _: True
    ) -> T:
        """What was measured under `key`, else what `measure` finds, which is kept if `keep` says so.

        A damaged file counts as none, as does one that another user can change; a log line says so.
        """
        path = cache_folder("jobs") / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.json"
        found = None if self._fresh else _read(kind, path, key)
        if found is not None:
            self.reused = True
            return found
        found = measure()
        if keep(found):
            _write(path, _File(key, msgspec.Raw(msgspec.json.encode(found))))
        return found


def machine(world: int) -> tuple[str, ...]:
    """This machine as `world` processes use it."""
    import torch

    from treadle.probe.local import cpu_model

    return (cpu_model(), f"{world} processes of 1 thread on {cores()} cores", f"torch {torch.__version__}", TOOL)


def _read(kind: type[T], path: Path, key: tuple[str, ...]) -> T | None:
    if not path.exists():
        return None
    try:
        require_private(path)
        file = msgspec.json.decode(read_text(path), type=_File)
        return msgspec.json.decode(file.found, type=kind) if file.key == key else None
    except (InputError, msgspec.DecodeError) as error:
        log.warning("measured costs in %s are not used: %s", path, error)
        return None


def _write(path: Path, file: _File) -> None:
    try:
        make_private(path.parent)
        write_text(path, msgspec.json.encode(file).decode() + "\n")
    except (InputError, OSError) as error:
        log.warning("measured costs are not kept: %s; set XDG_CACHE_HOME to a folder to write to", error)
