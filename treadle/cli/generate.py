"""`treadle generate`: plans become artefacts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treadle.cli.output import json_option, print_json, require_apart


@click.command()
@click.argument("plans", nargs=-1, required=True, metavar="PLAN...")
@click.option("--target", type=click.Choice(["torch", "msccl-xml", "cuda"]), help="[default: torch or msccl-xml]")
@click.option("--trace", help="The trace of a memory plan. [default: the one it names, beside it]")
@click.option("-o", "--output", required=True, metavar="DIR", help="The folder; a subfolder each for several plans.")
@click.option("--force", is_flag=True, help="Write into a folder that holds other files.")
@json_option
def command(plans: tuple[str, ...], target: Any, trace: str | None, output: str, force: bool, as_json: bool) -> None:
    """Turn PLAN... into artefacts: a PyTorch module for a memory plan, MSCCL XML or CUDA kernels for a
    collective."""
    from codegen import targets
    from codegen.emit import write
    from planner import documents
    from planner.artefact import FILE_NAME
    from planner.errors import InputError
    from planner.plan import Plan
    from planner.trace import Trace
    from treadle.cli.inputs import find

    rows = []
    names = [Path(path).name.removesuffix(".json").removesuffix(".plan") for path in plans]
    if len(set(names)) < len(names):
        raise InputError(f"found plans of one name in {', '.join(plans)}, expected different ones", where="PLAN...")
    for path, name in zip(plans, names, strict=True):
        plan = documents.load(path, Plan)
        reference = plan.inputs.get("trace")
        file = trace if trace is not None or reference is None else find("trace", reference, path, None)
        artefacts = targets.generate(plan, path, None if file is None else documents.load(file, Trace), target)
        folder = Path(output) / name if len(plans) > 1 else Path(output)
        for written in (*artefacts.files, FILE_NAME):
            same = written == targets.PLAN_NAME  # a folder may be made again from the plan inside it
            require_apart(str(folder / written), file, None if same else path)
        manifest = write(artefacts, folder, force=force)
        rows.append({"plan": path, "folder": str(folder), "target": manifest.target, "files": dict(manifest.files)})
    if as_json:
        print_json(rows)
        return
    for row in rows:
        click.echo(f"wrote {', '.join(sorted(row['files']))} to {row['folder']}")
