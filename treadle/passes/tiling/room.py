"""The tiling pass on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.passes.interface import Room, RunOptions, SectionContext
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.job import TilingJob

if TYPE_CHECKING:
    from treadle.job.part import JobPart
    from treadle.report.page import Card, Section


class TilingRoom(Room[TilingDecisions]):
    def cards(self, plan: Plan[TilingDecisions], context: SectionContext) -> tuple[Card, ...]:
        from treadle.passes.tiling.cards import tiling_cards

        return tiling_cards(plan)

    def job_part(self, job: Job, where: str) -> JobPart | None:
        from treadle.passes.tiling.job import TilingPart

        section = job.section(TilingJob)
        return None if section is None else TilingPart(section, where)

    def section(self, name: str, plan: Plan[TilingDecisions], context: SectionContext) -> Section:
        from treadle.passes.tiling.section import tiling_section

        return tiling_section(name, plan)

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.passes.tiling.run import run_tiling

        run_tiling(folder, target, options)


ROOM = TilingRoom()
