"""The checkpoint pass on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.codegen.interface import Timeline
from treadle.passes.interface import Room, RunOptions, SectionContext, Simulated
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.planner.passes.checkpoint.job import CheckpointJob

if TYPE_CHECKING:
    from treadle.job.part import JobPart
    from treadle.report.page import Card, Section


class CheckpointRoom(Room[CheckpointDecisions]):
    def job_part(self, job: Job, where: str) -> JobPart | None:
        from treadle.passes.checkpoint.job import CheckpointPart

        section = job.section(CheckpointJob)
        return None if section is None else CheckpointPart(section)

    def cards(self, plan: Plan[CheckpointDecisions], context: SectionContext) -> tuple[Card, ...]:
        from treadle.passes.checkpoint.cards import checkpoint_cards

        return checkpoint_cards(plan)

    def section(self, name: str, plan: Plan[CheckpointDecisions], context: SectionContext) -> Section:
        from treadle.passes.checkpoint.section import checkpoint_section

        return checkpoint_section(name, plan)

    def simulated(self, plan: Plan[CheckpointDecisions], timeline: Timeline) -> Simulated:
        """An iteration with a checkpoint as it happens next to what the plan says."""
        from treadle.passes.checkpoint.words import lines

        said, decisions = super().simulated(plan, timeline), plan.decisions
        planned = decisions.checkpoint_ns / 1000
        headline = f"{timeline.schedule.makespan / 1000:,.3f} us simulated, {planned:,.3f} us planned for an iteration "
        facts = {"checkpoint_us": planned, "iteration_us": decisions.problem.iteration_ns / 1000}
        words = tuple(f"{name:<12} {text}" for name, text in lines(plan) if name in ("how often", "iteration", "links"))
        return Simulated(f"{headline}with a checkpoint", {**said.facts, **facts}, (*words, *said.lines))

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.passes.checkpoint.run import run_checkpoint

        run_checkpoint(folder, options)


ROOM = CheckpointRoom()
