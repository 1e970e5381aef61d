"""The pass of aggregation on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.codegen.interface import Timeline
from treadle.passes.interface import Room, RunOptions, SectionContext, Simulated
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes.aggregation.decisions import AggregationDecisions
from treadle.planner.passes.aggregation.job import AggregationJob

if TYPE_CHECKING:
    from treadle.job.part import JobPart
    from treadle.report.page import Card, Section


class AggregationRoom(Room[AggregationDecisions]):
    def job_part(self, job: Job, where: str) -> JobPart | None:
        from treadle.passes.aggregation.job import AggregationPart

        section = job.section(AggregationJob)
        return None if section is None else AggregationPart(section, where)

    def cards(self, plan: Plan[AggregationDecisions], context: SectionContext) -> tuple[Card, ...]:
        from treadle.passes.aggregation.section import aggregation_cards

        return aggregation_cards(plan)

    def section(self, name: str, plan: Plan[AggregationDecisions], context: SectionContext) -> Section:
        from treadle.passes.aggregation.section import aggregation_section

        return aggregation_section(name, plan)

    def simulated(self, plan: Plan[AggregationDecisions], timeline: Timeline) -> Simulated:
        """The timeline has every message of the lowered program on links, NICs and uplinks."""
        said, decisions = super().simulated(plan, timeline), plan.decisions
        sent, across = format_bytes(decisions.total_bytes), format_bytes(decisions.across_bytes)
        facts = {"total_bytes": decisions.total_bytes, "across_bytes": decisions.across_bytes}
        return said._replace(facts={**said.facts, **facts}, lines=(f"sent  {sent}, {across} across", *said.lines))

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.runtime.collective.run import run

        run(folder, options)


ROOM = AggregationRoom()
