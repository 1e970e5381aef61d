"""The index pass on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.passes.interface import Room, RunOptions, SectionContext
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.index.decisions import IndexDecisions

if TYPE_CHECKING:
    from treadle.report.page import Card, Section


class IndexRoom(Room[IndexDecisions]):
    def section(self, name: str, plan: Plan[IndexDecisions], context: SectionContext) -> Section:
        from treadle.passes.index.section import index_section

        return index_section(name, plan)

    def cards(self, plan: Plan[IndexDecisions], context: SectionContext) -> tuple[Card, ...]:
        from treadle.passes.index.cards import index_cards

        return index_cards(plan)

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.passes.index.run import run_index

        run_index(folder, options)


ROOM = IndexRoom()
