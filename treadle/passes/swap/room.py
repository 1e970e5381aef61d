"""The swap pass on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from treadle.cli.output import print_run
from treadle.codegen.interface import MEMORY, Timeline
from treadle.passes.interface import Room, RunOptions, SectionContext, Simulated
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes.swap.decisions import SwapDecisions

if TYPE_CHECKING:
    from treadle.report.page import Card, Section


class SwapRoom(Room[SwapDecisions]):
    def cards(self, plan: Plan[SwapDecisions], context: SectionContext) -> tuple[Card, ...]:
        from treadle.passes.swap.cards import swap_cards

        return swap_cards(plan)

    def section(self, name: str, plan: Plan[SwapDecisions], context: SectionContext) -> Section:
        from treadle.passes.swap.section import swap_section

        return swap_section(name, plan)

    def simulated(self, plan: Plan[SwapDecisions], timeline: Timeline) -> Simulated:
        said, decisions, peak = super().simulated(plan, timeline), plan.decisions, timeline.schedule.peak[MEMORY]
        makespan = timeline.schedule.makespan
        idle = makespan - decisions.problem.ideal_ns
        facts = {"peak_bytes": peak, "idle_us": idle / 1000}
        facts |= {"in_bytes": decisions.in_bytes, "out_bytes": decisions.out_bytes}
        lines = (
            f"peak         {format_bytes(peak)} over {len(timeline.tasks)} nodes",
            f"copied       {format_bytes(decisions.in_bytes)} in, {format_bytes(decisions.out_bytes)} out",
            f"compute idle {idle / 1000:,.3f} us ({idle / makespan if makespan else 0.0:.0%})",
        )
        return said._replace(facts={**said.facts, **facts}, lines=(*lines, *said.lines))

    def run(self, folder: Path, target: str, options: RunOptions) -> None:
        if target == "torch-offload":
            from treadle.runtime.training import run_folder, training_lines

            options.require_world((None, 1), "a training step runs in one process")
            result = run_folder(folder, steps=options.steps, backend=options.backend)
            print_run("run-training", folder, result, training_lines(result), options.as_json)
        else:
            from treadle.passes.swap.run import run_swap

            options.require_world((None, 1), "a swap plan runs in one process")
            run_swap(folder, options.backend, options.steps, options.timeout, options.as_json)


ROOM = SwapRoom()
