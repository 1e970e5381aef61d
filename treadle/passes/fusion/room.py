"""The fusion pass on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.passes.interface import Room, RunOptions, SectionContext
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.fusion.decisions import FusionDecisions

if TYPE_CHECKING:
    from treadle.report.page import Card, Section


class FusionRoom(Room[FusionDecisions]):
    def cards(self, plan: Plan[FusionDecisions], context: SectionContext) -> tuple[Card, ...]:
        from treadle.passes.fusion.cards import fusion_cards

        return fusion_cards(plan)

    def section(self, name: str, plan: Plan[FusionDecisions], context: SectionContext) -> Section:
        from treadle.passes.fusion.section import fusion_section

        return fusion_section(name, plan)

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.passes.fusion.run import run_fusion

        options.require_world((None,), "the plan says how many ranks there are")
        run_fusion(folder, options.backend, options.repeats, options.timeout, options.as_json)


ROOM = FusionRoom()
