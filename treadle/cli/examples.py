"""`treadle examples`: copies the models, programs and jobs of the documentation into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.json_output import print_json
from treadle.cli.options import Json, folder_option
from treadle.cli.output import listed
from treadle.planner import resources
from treadle.planner.documents.files import read_text, write_text
from treadle.planner.documents.scalars import many
from treadle.planner.errors import InputError

SUFFIXES = (".py", ".yaml")


def command(
    *, output: Annotated[str, folder_option("The folder to copy them to.")] = "examples", as_json: Json = False
) -> None:
    """Copy the examples of the documentation into a folder: models, programs and a job.

    The documentation's commands name them as `examples/...` and `examples.models...`, seen from the folder above. A
    file that is there and reads otherwise stays as it is, and nothing is copied.
    """
    source, target = resources.folder("examples"), Path(output)
    names = sorted(path.relative_to(source) for path in source.rglob("*") if path.suffix in SUFFIXES)
    texts = {target / name: read_text(source / name) for name in names}
    changed = [str(path) for path, text in texts.items() if path.exists() and read_text(path) != text]
    if changed:
        found = f"found {listed(changed)}, which differ from the examples, expected a folder without them"
        raise InputError(found, where="--output")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    if as_json:
        print_json("examples", {"folder": str(target), "files": [str(name) for name in names]})
        return
    typer.echo(f"wrote {many(len(names), 'file')} to {target}")
