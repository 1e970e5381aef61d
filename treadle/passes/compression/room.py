"""The compression pass on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.codegen.interface import Timeline
from treadle.passes.interface import Room, RunOptions, SectionContext, Simulated
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.planner.passes.compression.job import CompressionJob

if TYPE_CHECKING:
    from treadle.job.part import JobPart
    from treadle.report.page import Card, Section


class CompressionRoom(Room[CompressionDecisions]):
    def job_part(self, job: Job, where: str) -> JobPart | None:
        from treadle.passes.compression.job import CompressionPart

        section = job.section(CompressionJob)
        return None if section is None else CompressionPart(section, where)

    def cards(self, plan: Plan[CompressionDecisions], context: SectionContext) -> tuple[Card, ...]:
        from treadle.passes.compression.cards import compression_cards

        return compression_cards(plan)

    def section(self, name: str, plan: Plan[CompressionDecisions], context: SectionContext) -> Section:
        from treadle.passes.compression.section import compression_section

        return compression_section(name, plan)

    def simulated(self, plan: Plan[CompressionDecisions], timeline: Timeline) -> Simulated:
        from treadle.passes.compression.words import exposed_ns, sent

        said, decisions = super().simulated(plan, timeline), plan.decisions
        exposed = exposed_ns(decisions.problem, timeline.schedule.makespan)
        facts = {"exposed_us": exposed / 1000, "uncompressed_us": decisions.uncompressed_ns / 1000}
        facts |= {"sent_bytes": decisions.sent_bytes}
        lines = (
            f"exposed      {format_time(exposed)} beyond the operators of the iteration",
            f"uncompressed {format_time(decisions.uncompressed_ns)} with every gradient sent as it is and alone",
            f"sent         {sent(decisions)} by the busiest rank",
        )
        return said._replace(facts={**said.facts, **facts}, lines=(*lines, *said.lines))

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.passes.compression.run import run_compression

        run_compression(folder, options)


ROOM = CompressionRoom()
