"""`treadle check`: is it right, and is it still the plan for these inputs?"""

from __future__ import annotations

from typing import Any

import click

from treadle.cli.output import json_option, listed, many, note, print_json


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--fresh", is_flag=True, help="Also compare each plan with its inputs, named here or found beside it.")
@click.option("--trace", help="The trace a plan was made from.")
@click.option("--hardware", help="The hardware profile a plan was made from.")
@click.option("--sketch", help="The sketch a plan was made from.")
@json_option
def command(
    files: tuple[str, ...],
    fresh: bool,
    trace: str | None,
    hardware: str | None,
    sketch: str | None,
    as_json: bool,
) -> int:
    """Check plans, other documents, folders of artefacts, and anybody's MSCCL XML.

    Exit code 0 when all are accepted, 1 when one is rejected, 2 when one cannot be read.
    """
    from planner import resources
    from planner.errors import InputError
    from treadle.checking import Inputs, check_file

    named = {
        "trace": trace,
        "hardware": None if hardware is None else str(resources.locate("profiles", hardware)),
        "sketch": None if sketch is None else str(resources.locate("sketches", sketch)),
    }
    inputs = Inputs({role: file for role, file in named.items() if file is not None}, fresh)
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
        verdict = "rejected" if report.findings else "accepted"
        code = max(code, int(bool(report.findings)))
        rows.append({"file": path, "verdict": verdict, "what": report.what, "findings": report.findings})
        if not as_json:
            _print(path, report.what, report.findings)
    if as_json:
        print_json(rows)
    rejected = [row["file"] for row in rows if row["verdict"] == "rejected"]
    if rejected:
        note(f"error: rejected {len(rejected)} of {many(len(rows), 'file')}: {listed(rejected)}")
    return code


def _print(path: str, what: str, findings: list[str]) -> None:
    if not findings:
        click.echo(f"{path}: accepted ({what})")
        return
    click.echo(f"{path}: rejected: {many(len(findings), 'finding')}")
    for finding in findings:
        click.echo(f"  {finding}")
