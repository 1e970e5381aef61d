"""One kept plan: a folder with the trace and its measured costs, and the plan, as the documents of the command line.

A lock on the folder, which ends with its process, lets one of several processes plan; the others wait and take its
plan. What cannot be read is planned again.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from treadle.host.cache_folder import require_private
from treadle.planner.documents import store
from treadle.planner.documents.files import write_text
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.trace import Costs, Op, Trace
from treadle.planner.errors import InputError, TreadleError
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.runtime.sources import plan_and_trace

log = logging.getLogger("treadle.fit")

TRACE, PLAN, VERIFIED = "step.trace.json", "memory.plan.json", "verified.txt"


@dataclass(frozen=True)
class PlanEntry:
    """The folder of one plan; None where nothing can be written."""

    folder: Path | None

    def require_files(self) -> None:
        """Raises InputError where a folder or device has the name of one of the files."""
        for name in (TRACE, PLAN, VERIFIED):
            path = self._path(name)
            if path is not None and path.exists() and not path.is_file():
                raise InputError("found no file in a place of the cache, delete what is there", where=str(path))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process is inside for one entry, where the file system has locks."""
        number = None
        try:
            with suppress(OSError):
                if self.folder is not None:
                    number = os.open(self.folder, os.O_RDONLY)
                    _lock(number)
            yield
        finally:
            if number is not None:
                os.close(number)

    def load(self, captured: Trace, *, level: int = logging.WARNING) -> tuple[Plan[MemoryDecisions], Trace] | None:
        """The checked plan and the trace with costs, if they are there and belong to `captured`; what is wrong with
        them is logged at `level`."""
        path = self._path(PLAN)
        if path is None or not path.exists():
            return None
        try:
            require_private(path.parent)
            plan, trace = plan_and_trace(path, None, "treadle.fit", MemoryDecisions)
        except (TreadleError, OSError) as error:
            log.log(level, "the kept plan is not used and replaced: %s", error)
            return None
        if without_costs(trace) != without_costs(captured):
            log.log(level, "the kept plan in %s is that of another step and replaced", self.folder)
            return None
        with suppress(OSError):
            os.utime(path.parent)
        return plan, trace

    def save(self, plan: Plan[MemoryDecisions], trace: Trace) -> None:
        """Write the trace with costs, then its plan, each whole or not at all; between them there is no plan. Raises
        InputError or OSError where that fails."""
        if self.folder is not None:
            (self.folder / PLAN).unlink(missing_ok=True)
            store.save(trace, self.folder / TRACE)
            self.save_plan(plan)

    def save_plan(self, plan: Plan[MemoryDecisions]) -> None:
        """Write another plan of the trace that is there, whole or not at all."""
        if self.folder is not None:
            store.save(plan, self.folder / PLAN)

    def verified(self, plan: Plan[MemoryDecisions]) -> bool:
        """Whether a step under `plan` was compared with plain PyTorch."""
        path = self._path(VERIFIED)
        with suppress(OSError, ValueError):
            return path is not None and path.read_text() == store.digest(plan)
        return False

    def set_verified(self, plan: Plan[MemoryDecisions]) -> None:
        """Record that it was; the plan in the folder may be another one by now."""
        path = self._path(VERIFIED)
        with suppress(TreadleError, OSError):
            if path is not None:
                write_text(path, store.digest(plan))

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / name


def _lock(number: int) -> None:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.info("waiting for the plan of the same step that another process makes")
        fcntl.flock(number, fcntl.LOCK_EX)


def without_costs(trace: Trace) -> Trace:
    """The ops and tensors of `trace`: measuring adds costs, and leaves out implementations that cannot run or lose."""

    def bare(op: Op) -> Op:
        return replace(op, time_ns=None, flops=None, bytes_moved=None, workspace_bytes=None, implementations=())

    return replace(trace, costs=Costs(model="absent"), ops=tuple(map(bare, trace.ops)))
