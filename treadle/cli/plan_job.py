"""`treadle plan job`: one file naming model, hardware and what to plan; everything from capture to report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.json_output import print_json
from treadle.cli.limit import clock_of
from treadle.cli.options import Json, folder_option, time_limit_option
from treadle.cli.output import note


def command(
    *,
    job: Annotated[str, typer.Argument(metavar="JOB.yaml", help="The model, the hardware and what to plan.")],
    output: Annotated[str, folder_option("Folder for documents, artefacts and the report.")],
    time_limit: Annotated[
        float | None,
        time_limit_option(
            "Seconds from the start of the command for all plans, without the time to measure; each part has an equal "
            "share of what is left. [default: none]"
        ),
    ] = None,
    no_run: Annotated[bool, typer.Option("--no-run", help="Plan, check and generate only; train nothing.")] = False,
    fresh_costs: Annotated[
        bool, typer.Option("--fresh-costs", help="Measure the step anew instead of taking what was measured before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Capture a model, plan its memory and its gradient exchange, check, generate, train and report.

    Training runs every rank as a process of this machine, first under plain DistributedDataParallel and then under the
    plans, from the same seed on the same batches. For a profile of CPUs the step is first measured on those processes,
    once for this machine; with --no-run, and for other profiles, times are modelled from the profile.
    """
    clock = None if time_limit is None else clock_of(time_limit)

    from treadle.job.pipeline import plan_job, run_job
    from treadle.job.report import job_page, outcome
    from treadle.planner.documents.files import write_text
    from treadle.planner.errors import CheckFailed, InputError
    from treadle.report.page import render
    from treadle.report.timelines import timelines, timelines_file

    path, out = Path(job), Path(output)
    if no_run and fresh_costs:
        raise InputError("found --no-run, with which nothing is measured", where="--fresh-costs")
    planned = plan_job(path, out, note, clock, measure=not no_run, fresh=fresh_costs)
    results = None if no_run else run_job(planned, path, note)
    summary = outcome(planned, results)
    page = out / "report.html"
    timeline = timelines_file(page)
    write_text(timeline, timelines(planned.plans))
    write_text(page, render(job_page(planned, summary, timeline.name)))
    if as_json:
        print_json("plan-job", summary.as_json())
    else:
        typer.echo(summary.line)
        for card in summary.cards:
            typer.echo(f"{card.label}: {card.value} ({card.note})")
        typer.echo(f"report: {page}")
    if summary.failures:
        who = (
            "the plans do not keep what the job asks for" if no_run else "the run does not keep what the plans promise"
        )
        raise CheckFailed(f"{planned.job.name}: {who}", summary.failures)
