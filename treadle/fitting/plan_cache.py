"""Plans kept between runs, in `treadle/plans` below XDG_CACHE_HOME (~/.cache).

The name of an entry is a digest of the captured trace and of all else that the plan follows from: budget, machine,
versions. So a plan is only found for a model that was captured again and is the same. The entries that were not used
for longest are deleted first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from treadle.capture.costs import cache as costs
from treadle.fitting.plan_entry import PlanEntry, without_costs
from treadle.fitting.settings import FitSettings
from treadle.host.cache_folder import cache_folder, make_private
from treadle.planner.documents import store
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import TreadleError
from treadle.planner.version import TOOL

log = logging.getLogger("treadle.fit")

MOST_BYTES = 256 * 2**20
"""Size of all entries above which the oldest are deleted."""


class PlanCache:
    """All entries. Where the folder cannot be used, they last as long as this process; a log line says why."""

    @cached_property
    def folder(self) -> Path:
        wanted = cache_folder("plans")
        try:
            make_private(wanted)
            return wanted
        except (TreadleError, OSError) as error:
            log.warning("plans are not kept: %s; set XDG_CACHE_HOME to a folder to write to", error)
        self._temporary = tempfile.TemporaryDirectory(prefix="treadle-plans-")
        return Path(self._temporary.name)

    def entry(self, captured: Trace, settings: FitSettings, device: str) -> PlanEntry:
        """The entry of a captured step; its folder is made."""
        folder = self.folder / key_of(captured, settings, device)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._prune(folder)
        return PlanEntry(folder)

    def _prune(self, used: Path) -> None:
        found = [(entry.stat().st_mtime, entry) for entry in self.folder.iterdir() if entry.is_dir() and entry != used]
        sizes = {entry: sum(file.stat().st_size for file in entry.iterdir()) for _, entry in found}
        total = sum(sizes.values())
        for _, entry in sorted(found):
            if total <= MOST_BYTES:
                return
            total -= sizes[entry]
            _delete(entry)


def key_of(captured: Trace, settings: FitSettings, device: str) -> str:
    """The name of an entry."""
    facts = {
        "trace": store.digest(without_costs(captured)),
        "budget": str(settings.budget) if isinstance(settings.budget, int) else f"{settings.budget}x",
        "reserve": settings.reserve_bytes,
        "hold_gradients": settings.hold_gradients,
        "machine": costs.file_of(device).stem,
        "treadle": TOOL,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _delete(folder: Path) -> None:
    """Delete an entry that no process has locked."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(number)
