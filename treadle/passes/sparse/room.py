"""The sparse pass on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.codegen.interface import Timeline
from treadle.passes.interface import Room, RunOptions, SectionContext, Simulated
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.job import SparseJob

if TYPE_CHECKING:
    from treadle.job.part import JobPart
    from treadle.report.page import Card, Section


class SparseRoom(Room[SparseDecisions]):
    def job_part(self, job: Job, where: str) -> JobPart | None:
        from treadle.passes.sparse.job import SparsePart

        section = job.section(SparseJob)
        return None if section is None else SparsePart(section)

    def cards(self, plan: Plan[SparseDecisions], context: SectionContext) -> tuple[Card, ...]:
        from treadle.passes.sparse.cards import sparse_cards

        return sparse_cards(plan)

    def section(self, name: str, plan: Plan[SparseDecisions], context: SectionContext) -> Section:
        from treadle.passes.sparse.section import sparse_section

        return sparse_section(name, plan)

    def simulated(self, plan: Plan[SparseDecisions], timeline: Timeline) -> Simulated:
        from treadle.passes.sparse.words import sent_bytes
        from treadle.planner.passes.sparse.decided import described

        said, decisions = super().simulated(plan, timeline), plan.decisions
        sent, dense = sent_bytes(decisions), decisions.dense_ns
        lines = (
            f"schemes      {described(decisions)}",
            f"dense        {format_time(dense)} with every gradient dense",
            f"sent         {format_bytes(sent)} between nodes by the busiest rank",
        )
        facts = {"dense_us": dense / 1000, "sent_bytes": sent}
        return said._replace(facts={**said.facts, **facts}, lines=(*lines, *said.lines))

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.passes.sparse.run import run_sparse

        run_sparse(folder, options)


ROOM = SparseRoom()
