"""The server pass on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.codegen.interface import Timeline
from treadle.passes.interface import Room, RunOptions, SectionContext, Simulated
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.server.decisions import ServerDecisions
from treadle.planner.passes.server.job import ServerJob

if TYPE_CHECKING:
    from treadle.job.part import JobPart
    from treadle.report.page import Card, Section


class ServerRoom(Room[ServerDecisions]):
    def job_part(self, job: Job, where: str) -> JobPart | None:
        from treadle.passes.server.job import ServerPart

        section = job.section(ServerJob)
        return None if section is None else ServerPart(section)

    def cards(self, plan: Plan[ServerDecisions], context: SectionContext) -> tuple[Card, ...]:
        from treadle.passes.server.cards import server_cards

        return server_cards(plan)

    def section(self, name: str, plan: Plan[ServerDecisions], context: SectionContext) -> Section:
        from treadle.passes.server.section import server_section

        return server_section(name, plan)

    def simulated(self, plan: Plan[ServerDecisions], timeline: Timeline) -> Simulated:
        """How long each part is busy, and when each engine would send the first result of a key."""
        from treadle.planner.passes.server.event_order import ENGINES, followed_key, results

        said, decisions = super().simulated(plan, timeline), plan.decisions
        followed = followed_key(decisions)
        if followed is None:
            return said
        name, chunks = followed
        cores = len(decisions.slots)
        found = {engine: results(engine, chunks, cores) for engine in ENGINES}
        lines = tuple(
            f"{engine:<6} first result of {name} after {format_time(each.first)}, last after "
            f"{format_time(each.last)}{' (planned)' if engine == decisions.engine else ''}"
            for engine, each in found.items()
        )
        facts = {"first_results_us": {engine: each.first / 1000 for engine, each in found.items()}}
        return said._replace(facts={**said.facts, **facts}, lines=(*lines, *said.lines))

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.passes.server.run import run_server

        run_server(folder, options)


ROOM = ServerRoom()
