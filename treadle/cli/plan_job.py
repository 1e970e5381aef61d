"""`treadle plan job`: one file naming model, hardware and what to plan; everything from capture to report."""

from __future__ import annotations

from pathlib import Path

import click

from treadle.cli.limit import clock_of, time_limit_option
from treadle.cli.output import FOLDER, json_option, note, print_json


@click.command()
@click.argument("job", metavar="JOB.yaml")
@click.option(
    "-o", "--output", required=True, type=FOLDER, metavar="DIR", help="Folder for documents, artefacts and the report."
)
@time_limit_option(
    None, "Seconds from the start of the command for all plans; each part has an equal share of what is left."
)
@click.option("--no-run", is_flag=True, help="Plan, check and generate only; train nothing.")
@json_option
def command(job: str, output: str, time_limit: float | None, no_run: bool, as_json: bool) -> None:
    """Capture a model, plan its memory and its gradient exchange, check, generate, train and report.

    Training runs every rank as a process of this machine, first under plain DistributedDataParallel and then under the
    plans, from the same seed on the same batches.
    """
    clock = None if time_limit is None else clock_of(time_limit)

    from treadle.job.pipeline import plan_job, run_job
    from treadle.job.report import job_page, outcome
    from treadle.planner.documents.files import write_text
    from treadle.planner.errors import CheckFailed
    from treadle.report.page import render

    path, out = Path(job), Path(output)
    planned = plan_job(path, out, note, clock)
    results = None if no_run else run_job(planned, path, note)
    summary = outcome(planned, results)
    write_text(out / "report.html", render(job_page(planned, summary)))
    if as_json:
        print_json(summary.as_json())
    else:
        for label, value, _ in summary.verdicts:
            click.echo(f"{label}: {value}")
        click.echo(f"report: {out / 'report.html'}")
    if summary.failures:
        raise CheckFailed(f"{planned.job.name}: the run does not keep what the plans promise", summary.failures)
