"""`treadle simulate`: a plan's timeline, predicted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from treadle.cli.output import json_option, print_json, require_apart


@click.command()
@click.argument("plan", metavar="PLAN")
@click.option("--perfetto", metavar="FILE", help="Write the timeline in the Chrome trace format, for ui.perfetto.dev.")
@json_option
def command(plan: str, perfetto: str | None, as_json: bool) -> None:
    """Predict the timeline of PLAN: operators and bytes in use of a memory plan, messages on links of a collective."""
    from codegen.simulate_plan import MEMORY, simulate_plan
    from planner import documents
    from planner.chrome_trace import chrome_trace
    from planner.files import write_text
    from planner.plan import Plan
    from planner.scalars import format_bytes
    from treadle.checking import require_accepted

    if perfetto is not None:
        require_apart(perfetto, plan)
    document = documents.load(plan, Plan)
    require_accepted(document, plan)
    timeline = simulate_plan(document)
    makespan, busy = timeline.schedule.makespan, timeline.busy_ns()
    if perfetto is not None:
        trace = chrome_trace(timeline.tasks, timeline.resources, timeline.schedule, title=Path(plan).name)
        write_text(perfetto, json.dumps(trace, sort_keys=True) + "\n")
    peak = timeline.schedule.peak.get(MEMORY)
    if as_json:
        result: dict[str, Any] = {
            "time_us": makespan / 1000,
            "planned_us": document.prediction.time_us,
            "tasks": len(timeline.tasks),
            "busy_us": {name: time / 1000 for name, time in busy.items()},
        }
        print_json(result if peak is None else {**result, "peak_bytes": peak})
        return
    click.echo(f"{plan}: {makespan / 1000:,.3f} us simulated, {document.prediction.time_us:,.3f} us planned")
    if peak is not None:
        click.echo(f"  peak         {format_bytes(peak)} over {len(timeline.tasks)} instructions")
    else:
        for name, time in sorted(busy.items(), key=lambda item: (-item[1], item[0])):
            share = time / makespan if makespan else 0.0
            click.echo(f"  {name:<24} busy {time / 1000:,.3f} us ({share:.0%})")
    if perfetto is not None:
        click.echo(f"wrote {perfetto}")
