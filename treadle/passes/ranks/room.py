"""The pass of ranks on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.passes.interface import Room, RunOptions, SectionContext
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes.ranks.decisions import RanksDecisions

if TYPE_CHECKING:
    from treadle.report.page import Section


class RanksRoom(Room[RanksDecisions]):
    def section(self, name: str, plan: Plan[RanksDecisions], context: SectionContext) -> Section:
        from treadle.passes.ranks.section import ranks_section

        return ranks_section(name, plan)

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        raise InputError("orders of hosts are not run yet", where=str(folder))


ROOM = RanksRoom()
