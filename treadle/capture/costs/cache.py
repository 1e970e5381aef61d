"""Measurements kept between runs: one file for each machine, in `treadle/costs` below XDG_CACHE_HOME (~/.cache).

A machine is a device by name, the number of CPU threads, the version of PyTorch and the text of treadle's kernels, for
each of them changes what calls take. Files are JSON objects of that machine and, by call signature, [nanoseconds,
workspace bytes] or null for a call that cannot run there.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch

from treadle.capture.costs.measuring import Measured, this_device
from treadle.host.cache_folder import cache_folder, make_private, require_private
from treadle.host.source import source_digest
from treadle.planner.documents.files import read_text, write_text
from treadle.planner.errors import InputError

log = logging.getLogger("treadle.costs")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    machine: tuple[str, ...]
    measured: dict[str, Measured]


@contextmanager
def kept(
    device: str, *, fresh: bool = False, report: Callable[[str], None] = log.warning
) -> Iterator[dict[str, Measured]]:
    """Yield what was measured on `device` before, by signature; what the block adds is kept, also when it fails.

    With `fresh` the block starts with nothing and what it measures replaces what was kept. A damaged file counts as
    empty, as does one that another user can change, and a folder that cannot be written keeps nothing; `report` is
    called with a line that says so.
    """
    path = file_of(device)
    before = {} if fresh else _read(path, device, report)
    known = dict(before)
    log.info("%d measured costs are in %s", len(known), path)
    try:
        yield known
    finally:
        if known != before:
            # Another process may have written meanwhile; a damaged file was reported above.
            merged = {**_read(path, device, log.debug), **known}
            text = msgspec.json.encode(_File(_machine(device), dict(sorted(merged.items()))))
            try:
                make_private(path.parent)
                write_text(path, text.decode() + "\n")
            except (InputError, OSError) as error:
                report(f"measured costs are not kept: {error}; set XDG_CACHE_HOME to a folder to write to")


def file_of(device: str) -> Path:
    """Where the measurements of `device` are kept."""
    digest = hashlib.sha256("\0".join(_machine(device)).encode()).hexdigest()
    return cache_folder("costs") / f"{digest[:16]}.json"


def _machine(device: str) -> tuple[str, ...]:
    return (
        this_device(device),
        f"torch {torch.__version__}",
        f"kernels {source_digest('kernels/*.py', 'kernels/*.cpp')}",
    )


def _read(path: Path, device: str, report: Callable[[str], None]) -> dict[str, Measured]:
    if not path.exists():
        return {}
    try:
        require_private(path)
        found = msgspec.json.decode(read_text(path), type=_File)
    except (InputError, msgspec.DecodeError) as error:
        report(f"measured costs in {path} are not used: {error}")
        return {}
    return found.measured if found.machine == _machine(device) else {}
