"""The collective pass on this machine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.codegen.interface import Timeline
from treadle.passes.interface import Room, RunOptions, SectionContext, Simulated, busy_lines
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.job import CollectiveJob
from treadle.planner.passes.interface import Inputs

if TYPE_CHECKING:
    from treadle.job.part import JobPart
    from treadle.report.page import Card, Section


class CollectiveRoom(Room[CollectiveDecisions]):
    def check_prediction(self, plan: Plan[CollectiveDecisions], found: Inputs) -> list[str]:
        """The predicted time of a program is what this version simulates."""
        hardware, transport = found.get("hardware"), plan.provenance.known.transport
        predicted = plan.prediction.time_us
        if not isinstance(hardware, Hardware) or transport is None or transport.program_us != predicted:
            return []
        from treadle.passes.collective.tuning import program_us

        truth = program_us(plan.decisions, hardware, transport)
        if math.isinf(truth):
            return ["prediction: found a plan over symmetric memory, which cannot run it; plan again"]
        if math.isclose(predicted, truth, rel_tol=1e-6, abs_tol=2e-3):
            return []
        return [f"prediction: time {predicted:g} us, this version simulates {truth:g} us; plan again"]

    def job_part(self, job: Job, where: str) -> JobPart | None:
        from treadle.passes.collective.job import CollectivePart

        section = job.section(CollectiveJob)
        return None if section is None else CollectivePart(section)

    def cards(self, plan: Plan[CollectiveDecisions], context: SectionContext) -> tuple[Card, ...]:
        from treadle.passes.collective.cards import collective_cards

        return collective_cards(plan)

    def section(self, name: str, plan: Plan[CollectiveDecisions], context: SectionContext) -> Section:
        from treadle.passes.collective.section import collective_section

        return collective_section(name, plan, context.hardware)

    def simulated(self, plan: Plan[CollectiveDecisions], timeline: Timeline) -> Simulated:
        """The program's own time is simulated where the plan was made; the timeline has its messages alone."""
        links_us, time_us = timeline.schedule.makespan / 1000, plan.prediction.time_us
        headline = f"{time_us:,.3f} us predicted; its messages alone take {links_us:,.3f} us on links"
        return Simulated(headline, {"time_us": time_us, "links_us": links_us}, busy_lines(timeline))

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.runtime.collective.run import run

        run(folder, options)


ROOM = CollectiveRoom()
