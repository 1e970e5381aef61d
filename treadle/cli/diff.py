"""`treadle diff`: how do two plans differ?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from treadle.cli.json_output import print_json
from treadle.cli.options import Json
from treadle.cli.output import printable
from treadle.planner.errors import CheckFailed

MOST = 12
"""Lines of a section that are printed; JSON has all."""


def command(
    *,
    before: Annotated[str, typer.Argument(metavar="A", help="A plan, another document, or a folder of artefacts.")],
    after: Annotated[str, typer.Argument(metavar="B", help="One of the same kind.")],
    as_json: Json = False,
) -> None:
    """Print how the plans A and B of one pass differ: inputs, decisions, prediction, certificate and provenance.

    Other documents are compared by their fields, folders of artefacts by their manifests and plans.

    Exit code 0 when they are equal, 1 when they differ, 2 when they cannot be compared.
    """
    from treadle.check.difference import compare_files

    compared = compare_files(before, after)
    if as_json:
        sections = {name: [asdict(each) for each in changes] for name, changes in compared.sections.items()}
        facts = {"files": [before, after], "what": compared.what, "equal": compared.equal}
        print_json("diff", {**facts, "changes": sections})
    elif compared.equal:
        typer.echo(f"equal: {compared.what}")
    else:
        for name, changes in compared.sections.items():
            if changes:
                typer.echo(name)
            for each in changes[:MOST]:
                typer.echo(f"  {printable(str(each))}")
            if len(changes) > MOST:
                typer.echo(f"  and {len(changes) - MOST} more (--json has all)")
    if not compared.equal:
        names = [name for name, changes in compared.sections.items() if changes]
        raise CheckFailed(f"{before} and {after} differ in {', '.join(names)}")
