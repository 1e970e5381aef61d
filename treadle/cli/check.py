"""`treadle check`: is it right, and is it still the plan for these inputs?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from treadle.cli.output import json_option, listed, note, print_json
from treadle.planner.documents.scalars import many

if TYPE_CHECKING:
    from treadle.check.file import Report


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--fresh", is_flag=True, help="Also compare each plan with its inputs, named here or found beside it.")
@click.option("--trace", help="The trace a plan was made from.")
@click.option("--hardware", help="The hardware profile a plan was made from.")
@click.option("--sketch", help="The sketch a plan was made from.")
@click.option(
    "--runtime",
    "runtimes",
    multiple=True,
    type=click.Choice(["msccl", "rccl", "executor"]),
    help="Also say by which rules this runtime would refuse or skip MSCCL XML.",
)
@click.option(
    "--fifo-depth",
    type=click.IntRange(min=1),
    help="Messages that a connection of MSCCL XML holds. [default: Simple 2, LL and LL128 8]",
)
@click.option("--pattern", help="The pattern a plan was made from.")
@click.option("--problem", help="The problem a plan was made from.")
@json_option
def command(
    files: tuple[str, ...],
    fresh: bool,
    trace: str | None,
    hardware: str | None,
    sketch: str | None,
    pattern: str | None,
    problem: str | None,
    runtimes: tuple[Any, ...],
    fifo_depth: int | None,
    as_json: bool,
) -> int:
    """Check plans, other documents, folders of artefacts, and anybody's MSCCL XML (docs/checking-xml.md).

    Artefacts whose plan or trace is missing cannot be regenerated and are reported as such; with --fresh they are
    rejected. Digests are no signatures (docs/security.md).

    Exit code 0 when none is rejected, 1 when one is, 2 when one cannot be read.
    """
    from treadle.check.file import Inputs, check_file
    from treadle.planner import resources
    from treadle.planner.errors import InputError

    named = {
        "trace": trace,
        "hardware": None if hardware is None else str(resources.locate("profiles", hardware)),
        "sketch": None if sketch is None else str(resources.locate("sketches", sketch)),
        "pattern": pattern,
        "problem": problem,
    }
    files_by_role = {role: file for role, file in named.items() if file is not None}
    inputs = Inputs(files_by_role, fresh, tuple(dict.fromkeys(runtimes)), fifo_depth)
    rows: list[dict[str, Any]] = []
    code = 0
    for path in files:
        try:
            report = check_file(path, inputs)
        except InputError as error:
            code = 2
            rows.append({"file": path, "verdict": "unreadable", "error": str(error)})
            note(f"error: {error}")
            continue
        verdict = "rejected" if report.findings else "unverified" if report.unverified else "accepted"
        code = max(code, int(bool(report.findings)))
        row: dict[str, Any] = {"file": path, "verdict": verdict, "what": report.what, "findings": report.findings}
        if report.unverified:
            row["unverified"] = report.unverified
        if report.judgements:
            row["runtimes"] = {
                name: [{**asdict(finding), "spots": [spot._asdict() for spot in finding.spots]} for finding in found]
                for name, found in report.judgements.items()
            }
        rows.append(row)
        if not as_json:
            _print(path, report)
    if as_json:
        print_json(rows)
    rejected = [row["file"] for row in rows if row["verdict"] == "rejected"]
    if rejected:
        note(f"error: rejected {len(rejected)} of {many(len(rows), 'file')}: {listed(rejected)}")
    return code


def _print(path: str, report: Report) -> None:
    from treadle.codegen.collective.msccl.rules import FATAL

    if report.findings:
        click.echo(f"{path}: rejected: {many(len(report.findings), 'finding')}")
    else:
        click.echo(f"{path}: {report.unverified or 'accepted'} ({report.what})")
    for line in report.findings:
        click.echo(f"  {line}")
    for name, found in report.judgements.items():
        if any(finding.effect in FATAL for finding in found):
            continue
        for effect, words in WORDS.items():
            rules = [finding for finding in found if finding.effect == effect]
            if rules:
                click.echo(f"  {name} {words}:")
            for finding in rules:
                click.echo(f"    {finding}")


WORDS = {
    "needs": "needs",
    "falls back": "runs its own algorithm, silently, when",
    "ignores": "ignores",
}
"""What a runtime does with a file that it takes, in the order of printing."""
