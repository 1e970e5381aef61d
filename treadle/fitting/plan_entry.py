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
from treadle.planner.errors import TreadleError
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.runtime.sources import plan_and_trace

log = logging.getLogger("treadle.fit")

TRACE, PLAN, VERIFIED = "step.trace.json", "memory.plan.json", "verified.txt"


@dataclass(frozen=True)
class PlanEntry:
    """The folder of one plan."""

    folder: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process is inside for one entry, where the file system has locks."""
        number = os.open(self.folder, os.O_RDONLY)
        try:
            with suppress(OSError):
                try:
                    fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    log.info("waiting for the plan of the same step that another process makes")
                    fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)

    def load(self, captured: Trace) -> tuple[Plan[MemoryDecisions], Trace] | None:
        """The checked plan and the trace with costs, if they are there and belong to `captured`."""
        path = self.folder / PLAN
        if not path.exists():
            return None
        try:
            require_private(self.folder)
            plan, trace = plan_and_trace(path, None, "treadle.fit", MemoryDecisions)
        except (TreadleError, OSError) as error:
            log.warning("the kept plan is not used and replaced: %s", error)
            return None
        if without_costs(trace) != without_costs(captured):
            log.warning("the kept plan in %s is that of another step and replaced", self.folder)
            return None
        with suppress(OSError):
            os.utime(self.folder)
        return plan, trace

    def save_trace(self, trace: Trace) -> None:
        """Write the trace with costs. A plan that was there before is not its plan."""
        (self.folder / PLAN).unlink(missing_ok=True)
        store.save(trace, self.folder / TRACE)

    def save_plan(self, plan: Plan[MemoryDecisions]) -> None:
        """Write the plan of the trace that is there, whole or not at all."""
        store.save(plan, self.folder / PLAN)

    @property
    def verified(self) -> bool:
        """Whether a step under this plan was compared with plain PyTorch."""
        with suppress(OSError, ValueError):
            return (self.folder / VERIFIED).read_text() == store.digest(store.load(self.folder / PLAN, Plan))
        return False

    def set_verified(self) -> None:
        """Record that it was."""
        with suppress(TreadleError, OSError):
            write_text(self.folder / VERIFIED, store.digest(store.load(self.folder / PLAN, Plan)))


def without_costs(trace: Trace) -> Trace:
    """The ops and tensors of `trace`: measuring adds costs, and leaves out implementations that cannot run or lose."""

    def bare(op: Op) -> Op:
        return replace(op, time_ns=None, flops=None, bytes_moved=None, workspace_bytes=None, implementations=())

    return replace(trace, costs=Costs(model="absent"), ops=tuple(map(bare, trace.ops)))
