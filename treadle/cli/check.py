"""`treadle check`: is it right, and is it still the plan for these inputs?"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from treadle.check.inputs import input_kinds
from treadle.cli.completion import shipped
from treadle.cli.json_output import print_json
from treadle.cli.options import Json, choice, share, whole, written
from treadle.cli.output import listed, note, note_error, printable
from treadle.cli.tuned_lines import print_tuned, tuned_facts
from treadle.codegen.collective.msccl.runtimes import RUNTIMES, Name
from treadle.planner.documents.files import write_text
from treadle.planner.documents.scalars import many
from treadle.planner.documents.sources import SHIPPED, locate
from treadle.planner.errors import InputError

if TYPE_CHECKING:
    from treadle.check.file import Report
    from treadle.check.regression import Today


def _with_roles(function: Callable[..., int]) -> Callable[..., int]:
    """With an option for each kind of document that some pass makes plans from."""
    signature = inspect.signature(function, eval_str=True)
    *fixed, _ = signature.parameters.values()
    named = [
        inspect.Parameter(
            role,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(
                    metavar="NAME|FILE" if kind in SHIPPED else "FILE",
                    autocompletion=shipped(SHIPPED[kind]) if kind in SHIPPED else None,
                    help=f"The {role} a plan was made from.",
                ),
            ],
        )
        for role, kind in input_kinds().items()
    ]
    function.__signature__ = signature.replace(parameters=[*fixed[:2], *named, *fixed[2:]])  # type: ignore[attr-defined]
    return function


@_with_roles
def command(
    *,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Plans, other documents, folders of artefacts, MSCCL XML.")
    ],
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Also compare each plan with its inputs, named here or found next to it.")
    ] = False,
    max_regression: Annotated[
        float | None,
        share(
            "With --fresh: accept a plan whose inputs changed while its decisions fit them and predicted time, peak "
            "and gap are at most this share worse."
        ),
    ] = None,
    runtimes: Annotated[
        list[str] | None,
        choice([*RUNTIMES], "--runtime", "Also report by which rules this runtime would refuse or skip MSCCL XML."),
    ] = None,
    fifo_depth: Annotated[
        int | None,
        whole("Messages that a connection of MSCCL XML holds. [default: Simple 2, LL and LL128 8]", least=1),
    ] = None,
    sarif: Annotated[
        str | None,
        written(
            "--sarif",
            kind="SARIF file",
            endings=(".sarif", ".json"),
            help="Also write findings as SARIF 2.1.0, for code scanning in CI.",
        ),
    ] = None,
    as_json: Json = False,
    **named: str | None,
) -> int:
    """Check plans, other documents, folders of artefacts, and MSCCL XML of any tool.

    Artefacts whose plan or trace is missing cannot be regenerated and are reported as such; with --fresh they are
    rejected. Digests are no signatures (docs/security.md).

    Exit code 0 when none is rejected, 1 when one is, 2 when one cannot be read.
    """
    from treadle.check.file import CheckOptions, check_file
    from treadle.report.timelines import ENDING

    if max_regression is not None and not fresh:
        raise InputError("found it without --fresh, which compares a plan with its inputs", where="--max-regression")
    kinds = input_kinds()
    files_by_role = {role: str(locate(kinds[role], file)) for role, file in named.items() if file is not None}
    inputs = CheckOptions(
        files_by_role, fresh, tuple(dict.fromkeys(cast("list[Name]", runtimes or []))), fifo_depth, max_regression
    )
    rows: list[dict[str, Any]] = []
    code = 0
    checked: list[tuple[str, Report | InputError]] = []
    timelines = [path for path in files if path.endswith(ENDING)]
    if timelines:
        note(f"passed over {', '.join(timelines)}: a timeline for ui.perfetto.dev, no document")
    for path in files:
        if path in timelines:
            continue
        try:
            report = check_file(path, inputs)
        except InputError as error:
            code = 2
            checked.append((path, error))
            rows.append({"file": path, "verdict": "unreadable", "error": str(error)})
            continue
        checked.append((path, report))
        verdict = "rejected" if report.findings else "unverified" if report.unverified else "accepted"
        code = max(code, int(bool(report.findings)))
        row: dict[str, Any] = {"file": path, "verdict": verdict, "what": report.what, "findings": report.findings}
        if report.unverified:
            row["unverified"] = report.unverified
        if report.today is not None:
            row["today"] = _today(report.today)
        if report.plan is not None and report.plan.provenance.tuned:
            row["tuned"] = tuned_facts(report.plan)
        if report.judgements:
            row["runtimes"] = {
                name: [{**asdict(finding), "spots": [spot._asdict() for spot in finding.spots]} for finding in found]
                for name, found in report.judgements.items()
            }
        rows.append(row)
        if not as_json:
            _print(path, report)
    if sarif is not None:
        from treadle.check.sarif import sarif as text_of

        write_text(sarif, text_of(checked))
        note(f"wrote {sarif}")
    if as_json:
        print_json("check", {"files": rows})
    for row in rows:
        if row["verdict"] == "unreadable":
            note_error(row["error"])
    rejected = [row["file"] for row in rows if row["verdict"] == "rejected"]
    if rejected:
        note_error(f"rejected {len(rejected)} of {many(len(rows), 'file')}: {listed(rejected)}")
    return code


def _today(today: Today) -> dict[str, Any]:
    """Predicted figures and gap, each as recorded and on the inputs of today."""
    now = today.now
    return {
        "time_ns": {"recorded": today.recorded.time_ns, "today": now and now.time_ns},
        "peak_bytes": {"recorded": today.recorded.peak_bytes, "today": now and now.peak_bytes},
        "gap": None if today.gaps is None else {"recorded": today.gaps[0], "today": today.gaps[1]},
    }


def _print(path: str, report: Report) -> None:
    from treadle.codegen.collective.msccl.rules import FATAL

    if report.findings:
        typer.echo(printable(f"{path}: rejected: {many(len(report.findings), 'finding')}"))
    else:
        typer.echo(printable(f"{path}: {report.unverified or 'accepted'} ({report.what})"))
    for line in report.findings:
        typer.echo(printable(f"  {line}"))
    if report.plan is not None and not report.findings:
        print_tuned(report.plan, "  ")
    for name, found in report.judgements.items():
        if any(finding.effect in FATAL for finding in found):
            continue
        for effect, words in WORDS.items():
            rules = [finding for finding in found if finding.effect == effect]
            if rules:
                typer.echo(f"  {name} {words}:")
            for finding in rules:
                typer.echo(f"    {finding}")


WORDS = {
    "needs": "needs",
    "falls back": "runs its own algorithm, silently, when",
    "ignores": "ignores",
}
"""What a runtime does with a file that it takes, in the order of printing."""
