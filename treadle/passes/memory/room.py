"""The memory pass on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.output import print_run
from treadle.codegen.interface import MEMORY, Timeline
from treadle.passes.interface import Room, RunOptions, SectionContext, Simulated
from treadle.planner.documents.job import Job
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.job import MemoryJob

if TYPE_CHECKING:
    from treadle.job.part import JobPart
    from treadle.report.page import Card, Section


class MemoryRoom(Room[MemoryDecisions]):
    def job_part(self, job: Job, where: str) -> JobPart | None:
        from treadle.passes.memory.job import MemoryPart
        from treadle.planner.passes.memory.planning import parse_budget

        section = job.section(MemoryJob)
        if section is None:
            return None
        return MemoryPart(parse_budget(section.budget, where=f"{where}: $.memory.budget"), section.budget)

    def cards(self, plan: Plan[MemoryDecisions], context: SectionContext) -> tuple[Card, ...]:
        from treadle.passes.memory.cards import memory_cards

        return memory_cards(plan.decisions)

    def section(self, name: str, plan: Plan[MemoryDecisions], context: SectionContext) -> Section:
        from treadle.passes.memory.section import memory_section

        return memory_section(name, plan.decisions, context.measured)

    def together(self, plans: Mapping[str, Plan[MemoryDecisions]]) -> list[Section]:
        from treadle.passes.memory.pareto import sections_of_curves

        return sections_of_curves(plans)

    def simulated(self, plan: Plan[MemoryDecisions], timeline: Timeline) -> Simulated:
        said, peak = super().simulated(plan, timeline), timeline.schedule.peak[MEMORY]
        line = f"peak         {format_bytes(peak)} over {len(timeline.tasks)} instructions"
        return said._replace(facts={**said.facts, "peak_bytes": peak}, lines=(line,))

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        from treadle.runtime.training import run_folder, training_lines

        options.require_world((None, 1), "a training step runs in one process")
        result = run_folder(folder, steps=options.steps, backend=options.backend)
        print_run("run-training", folder, result, training_lines(result), options.as_json)


ROOM = MemoryRoom()
