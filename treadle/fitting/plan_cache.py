"""Plans kept between runs, in `treadle/plans` below XDG_CACHE_HOME (~/.cache).

The name of an entry is a digest of the captured trace and of all else that the plan follows from: budget, machine,
versions. So a plan is only found for a model that was captured again and is the same. The entries that were not used
for longest are deleted first. Where the folder cannot be written, entries are in a temporary one, and where that
cannot be written either, in none.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from treadle.capture.costs import cache as costs
from treadle.fitting.plan_entry import PlanEntry, without_costs
from treadle.fitting.settings import FitSettings
from treadle.host.cache_folder import cache_folder, make_private
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import TreadleError
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.version import TOOL

log = logging.getLogger("treadle.fit")

MOST_BYTES = 256 * 2**20
"""Size of all entries above which the oldest are deleted."""


class PlanCache:
    """All entries. Where the folder cannot be used, they last as long as this cache; one warning says why."""

    def __init__(self) -> None:
        self._failed = False

    def report(self, line: str) -> None:
        """Log why something is not kept, as a warning the first time: what follows has the same cause."""
        log.log(logging.DEBUG if self._failed else logging.WARNING, line)
        self._failed = True

    def entry(self, captured: Trace, settings: FitSettings, device: str) -> PlanEntry:
        """The entry of a captured step; its folder is made."""
        name = key_of(captured, settings, device)
        wanted = cache_folder("plans") / name
        try:
            make_private(wanted.parent)
            wanted.mkdir(mode=0o700, exist_ok=True)
            entry = PlanEntry(wanted)
            entry.require_files()
            _prune(wanted)
            return entry
        except (TreadleError, OSError) as error:
            return self._temporary_entry(name, error)

    def saved(self, entry: PlanEntry, plan: Plan[MemoryDecisions], trace: Trace) -> PlanEntry:
        """Where plan and trace were written: `entry`, or else a temporary one, or one without a folder."""
        try:
            entry.save(plan, trace)
            return entry
        except (TreadleError, OSError) as error:
            if entry.folder is None:
                return entry
            other = self._temporary_entry(entry.folder.name, error)
        try:
            other.save(plan, trace)
            return other
        except (TreadleError, OSError) as error:
            self.report(f"plans are not kept: {error}")
            return PlanEntry(None)

    def _temporary_entry(self, name: str, error: Exception) -> PlanEntry:
        self.report(f"plans are not kept: {error}; set XDG_CACHE_HOME to a folder to write to")
        try:
            folder = self._temporary / name
            folder.mkdir(mode=0o700, exist_ok=True)
            return PlanEntry(folder)
        except OSError as also:
            self.report(f"plans are not kept: {also}")
            return PlanEntry(None)

    @cached_property
    def _temporary(self) -> Path:
        folder = tempfile.mkdtemp(prefix="treadle-plans-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)


def _prune(used: Path) -> None:
    """Delete the oldest entries next to `used` above the size of the cache."""
    with suppress(OSError):  # another process deletes them too
        found = [(entry.stat().st_mtime, entry) for entry in used.parent.iterdir() if entry.is_dir() and entry != used]
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
