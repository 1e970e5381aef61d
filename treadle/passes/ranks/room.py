"""The pass of ranks on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.codegen.interface import Timeline
from treadle.passes.interface import Room, RunOptions, SectionContext, Simulated
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.interface import Inputs
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.job import RanksJob

if TYPE_CHECKING:
    from treadle.job.part import JobPart
    from treadle.report.page import Card, Section

DEAREST = 5
"""The dearest hops that are listed."""


class RanksRoom(Room[RanksDecisions]):
    def job_part(self, job: Job, where: str) -> JobPart | None:
        from treadle.passes.ranks.job import RanksPart

        section = job.section(RanksJob)
        return None if section is None else RanksPart(section, where)

    def section(self, name: str, plan: Plan[RanksDecisions], context: SectionContext) -> Section:
        from treadle.passes.ranks.section import ranks_section

        return ranks_section(name, plan)

    def cards(self, plan: Plan[RanksDecisions], context: SectionContext) -> tuple[Card, ...]:
        from treadle.passes.ranks.cards import ranks_cards

        return ranks_cards(plan)

    def simulated(self, plan: Plan[RanksDecisions], timeline: Timeline) -> Simulated:
        """What the order costs next to others, and the dearest hops."""
        from treadle.passes.ranks.words import compared

        said, decisions = super().simulated(plan, timeline), plan.decisions
        dearest = sorted(timeline.tasks, key=lambda task: (-task.duration, task.name))[:DEAREST]
        hops = tuple(f"{task.name:<36} {format_time(task.duration)}" for task in dearest)
        facts = {"cost_us": decisions.cost_ns / 1000, "original_us": decisions.original_ns / 1000}
        return said._replace(facts={**said.facts, **facts}, lines=(*compared(decisions), *hops))

    def check_prediction(self, plan: Plan[RanksDecisions], found: Inputs) -> list[str]:
        """Whether the hops are those of the collective plan that was laid on the hosts."""
        from treadle.passes.ranks.hops import collective_plan, hops_of

        given, problem = found.get("plan"), plan.decisions.problem
        if not isinstance(given, Plan):
            return []
        decisions = collective_plan(given, "--plan")
        hops = hops_of(decisions, len(problem.hosts), problem.hosts[0].slots, "--plan")
        if (hops, decisions.input_bytes) == (problem.hops, problem.size_bytes):
            return []
        return ["$.decisions.problem.hops: not what the inputs say now; plan again"]

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.passes.ranks.run import run_ranks_plan

        run_ranks_plan(folder, options)


ROOM = RanksRoom()
