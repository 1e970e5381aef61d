"""The tiling pass in a job: the model's step cut over a mesh of the job's ranks, next to the training as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from treadle.job.part import JobInputs, JobPart, JobPlan, PartReport, TrainingComparison
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.planner.documents.store import digest
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.job import TilingJob
from treadle.planner.search.clock import Clock
from treadle.report.page import Card

if TYPE_CHECKING:
    from treadle.planner.solver import Progress

NAME = "tiling"
LIMIT_S = 60.0
"""Seconds of the search, where the job has no limit."""
CHECKED = "as one step over all ranks; `treadle.shard` trains under it, the job trains data-parallel"


@dataclass(frozen=True)
class TilingPart(JobPart):
    """It changes nothing of the training, in which each rank has the whole model and a batch of its own."""

    job: TilingJob
    where: str

    def plans(self, given: JobInputs) -> Sequence[JobPlan]:
        workers, ranks = prod(self.job.mesh), given.hardware.ranks
        if workers != ranks:
            found = f"found a mesh of {workers} workers, expected {ranks}, the ranks of the job"
            raise InputError(found, where=self.where, path="$.tiling.mesh")
        mesh = "x".join(map(str, self.job.mesh))
        return [JobPlan(NAME, f"tilings of the model over a mesh of {mesh}", partial(_plan, self.job, given))]

    def report(self, plans: Mapping[str, Plan], peak: int | None, measured: TrainingComparison | None) -> PartReport:
        decisions = require_pass(plans[NAME], TilingDecisions, f"{NAME}.plan.json").decisions
        memory, moved = format_bytes(decisions.memory_bytes), format_bytes(decisions.moved_bytes)
        note = f"predicted; {memory} on the fullest rank, {moved} moved between ranks"
        step = Card("one step cut over the ranks", format_time(decisions.time_ns), None, note)
        return PartReport(details=(step, Card("tilings", "checked, not run", None, CHECKED)))


def _plan(
    job: TilingJob, given: JobInputs, clock: Clock | None, on_progress: Callable[[Progress], None]
) -> Plan[TilingDecisions]:
    from treadle.passes.tiling.extract import ModelTiling, problem_of_trace
    from treadle.planner.passes.tiling.extract import mesh_axes
    from treadle.planner.passes.tiling.planning import plan_tiling

    axes = mesh_axes(job.mesh, given.hardware)
    return plan_tiling(
        problem_of_trace(given.trace, ModelTiling(axes, memory_bytes=job.memory_bytes, states=0)).problem,
        clock=clock or Clock.of(LIMIT_S),
        inputs={
            role: InputRef(file=f"{role}.json", digest=digest(document))
            for role, document in (("trace", given.trace), ("hardware", given.hardware))
        },
        on_progress=on_progress,
    )
