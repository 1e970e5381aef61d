"""`treadle generate`: plans become artefacts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.json_output import print_json
from treadle.cli.options import Json, choice, folder_option
from treadle.cli.output import note
from treadle.codegen.collective.msccl.runtimes import Name
from treadle.codegen.targets import target_names
from treadle.planner.documents.scalars import many

if TYPE_CHECKING:
    from treadle.planner.documents.artefact import Artefact

MOST_HEADERS = 16
"""That are listed by name."""


def command(
    *,
    plans: Annotated[list[str], typer.Argument(metavar="PLAN", help="Plans, or the selection of a size sweep.")],
    target: Annotated[
        str | None, choice(target_names(), "--target", "What to write. [default: the first target of the plan's pass]")
    ] = None,
    runtime: Annotated[
        Name | None,
        typer.Option(
            help="Write MSCCL XML that this runtime takes, with fewer instances where it must be. [default: the "
            "dialect of rccl, of any size]"
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The trace of a memory or swap plan. [default: the one it names, next to it]"
        ),
    ] = None,
    collectives: Annotated[
        list[str] | None,
        typer.Option(
            "--collective",
            metavar="PLAN",
            help="Execute the collectives of a fusion plan as this plan of `treadle plan collective` states.",
        ),
    ] = None,
    output: Annotated[str, folder_option("The folder; a subfolder each for several plans.")],
    as_json: Json = False,
) -> None:
    """Write the files that execute a plan.

    Memory plan: a PyTorch module (torch), or files by which PyTorch's own checkpointing (torch-sac) or torch.compile
    (torch-compile) follows the plan. Swap plan: its step (torch-swap), or the part of it that torch.compile
    (torch-offload) or DeepSpeed (deepspeed) supports. Collective: MSCCL XML, MSCCL++ plans or CUDA kernels. Fusion
    plan: CUDA kernels, PyTorch, NCCL calls, or its overlaps for TransformerEngine (tp-overlap).

    A selection becomes all of its programs, each with the sizes it is for, or a tuner file for stock NCCL. The plan and
    the inputs of a collective are copied with it, so that the folder can be checked on its own.
    """
    from dataclasses import replace

    from treadle.check.inputs import inputs_beside
    from treadle.check.selection import plans_of
    from treadle.codegen import targets
    from treadle.codegen.collective.selection_files import generate_selection
    from treadle.codegen.emit import write
    from treadle.planner.documents import store
    from treadle.planner.documents.artefact import FILE_NAME
    from treadle.planner.documents.overwrite import require_apart
    from treadle.planner.documents.plan import Plan
    from treadle.planner.documents.selection import FILE_NAME as SELECTION_NAME
    from treadle.planner.documents.selection import Selection
    from treadle.planner.documents.sources import find_input
    from treadle.planner.documents.trace import Trace
    from treadle.planner.errors import InputError

    rows = []
    names = [Path(path).name.removesuffix(".json").removesuffix(".plan") for path in plans]
    if len(set(names)) < len(names):
        raise InputError(f"found plans of one name in {', '.join(plans)}, expected different ones", where="PLAN...")
    for path, name in zip(plans, names, strict=True):
        document = store.load_any(path)
        own = [path]
        file = None
        if isinstance(document, Selection):
            chosen = plans_of(document, path)
            own += [str(Path(path).parent / name) for name in chosen]
            inputs = {file: text for made in chosen.values() for file, text in inputs_beside(made, path).items()}
            artefacts = generate_selection(document, path, chosen, target, runtime)
        elif isinstance(document, Plan):
            reference = document.inputs.get("trace")
            file = trace if trace is not None or reference is None else find_input("trace", Trace, reference, path)
            recorded = None if file is None else store.load(file, Trace)
            carried = {Path(name).name: store.load(name, Plan) for name in collectives or ()}
            artefacts = targets.generate(document, path, recorded, target, runtime, carried)
            inputs = inputs_beside(document, path)
        else:
            kind = document.__struct_config__.tag
            raise InputError(f"found {kind!r}, expected a plan or a selection", where=path, path="$.kind")
        artefacts = replace(artefacts, files={**inputs, **artefacts.files})
        folder = Path(output) / name if len(plans) > 1 else Path(output)
        for written in (*artefacts.files, FILE_NAME):
            kept = (targets.PLAN_NAME, SELECTION_NAME, *(Path(name).name for name in own[1:]))
            same = written in (*kept, *inputs)  # a folder may be generated again from the plan inside it
            require_apart(folder / written, [file, *([] if same else own)])
        manifest = write(artefacts, folder)
        for place, why in manifest.facts.get("left_out", {}).items():
            note(f"range {place} left out: {why}")
        if manifest.target == "nccl-tuner" and isinstance(document, Selection) and not document.rivals:
            from treadle.codegen.collective.nccl_tuner import FILE_NAME as TUNER_FILE
            from treadle.codegen.collective.nccl_tuner import why_none

            note(f"{TUNER_FILE}: no row, for {why_none(document)}")
        predicted, budget = (manifest.facts.get(key) for key in ("predicted_bytes", "budget_bytes"))
        if isinstance(document, Plan) and predicted is not None and budget is not None and predicted > budget:
            from treadle.planner.documents.scalars import format_bytes

            peaks = f"a peak of {format_bytes(predicted)} instead of the plan's budget of {format_bytes(budget)}"
            why = next(
                made.over_budget for made in targets.targets_of(document).targets if made.name == manifest.target
            )
            note(f"{why}: expect {peaks}")
        if manifest.target in ("torch-offload", "deepspeed"):
            note(_carried(manifest))
        for members, why in manifest.facts.get("in_turn", {}).items():
            note(f"{members}: one after another instead of overlapped: {why}")
        for line in manifest.facts.get("without", ()):
            note(line)
        for stage, what in manifest.facts.get("instead", {}).items():
            note(f"{stage}: runs on {what}")
        if "instances" in manifest.facts:
            note(f"only {many(manifest.facts['instances'], 'instance')} of each threadblock fit")
        for place, count in manifest.facts.get("fewer_instances", {}).items():
            note(f"range {place}: only {many(count, 'instance')} of each threadblock fit")
        if runtime is None:
            for line in _strangers(artefacts.files):
                note(line)
        rows.append({"plan": path, "folder": str(folder), "target": manifest.target, "files": dict(manifest.files)})
    if as_json:
        print_json("generate", {"folders": rows})
        return
    for row in rows:
        typer.echo(f"wrote {_listed(row['files'])} to {row['folder']}")


def _listed(files: Collection[str]) -> str:
    """File names, but very many headers as their number."""
    headers = [name for name in files if name.endswith(".h")]
    if len(headers) <= MOST_HEADERS:
        return ", ".join(sorted(files))
    return f"{', '.join(sorted(set(files) - set(headers)))} and {len(headers)} headers"


def _carried(manifest: Artefact) -> str:
    """How much of a swap plan a target carries, and that its memory is not promised."""
    from treadle.planner.documents.scalars import format_bytes

    carried = manifest.facts["carried"]
    if manifest.target == "deepspeed":
        shares = (f"{format_bytes(share['kept'])} of {kind}" for kind, share in carried.items())
        return f"DeepSpeed keeps {' and '.join(shares)} on the device; order and copies are its own"
    size, copies = format_bytes(carried["bytes"]), carried["planned_copies"]
    moves = f"{many(carried['moves'], 'activation')} ({size}) of the plan's {many(copies, 'transfer')}"
    return f"PyTorch moves {moves} as planned; the rest stays on the device, so its memory is not promised"


def _strangers(files: Mapping[str, str]) -> Iterator[str]:
    """A line for every MSCCL XML file that no runtime takes."""
    from treadle.check.file import fatal
    from treadle.codegen.collective.msccl import xml
    from treadle.codegen.collective.msccl.rules import judge
    from treadle.codegen.collective.msccl.runtimes import RUNTIMES
    from treadle.codegen.collective.msccl.subject import Subject

    for name, text in sorted(files.items()):
        if not name.endswith(".xml"):
            continue
        program = xml.parse(text, name)
        rules = {
            each: sorted({found.rule for found in fatal(judge(Subject(text, program), each))}) for each in RUNTIMES
        }
        if all(rules.values()):
            why = ", ".join(f"{each} ({', '.join(ids)})" for each, ids in rules.items())
            able = [each for each in RUNTIMES if program.collective in RUNTIMES[each].collectives]
            yield (
                f"{name}: taken by no runtime: {why}; collective {program.collective!r} is known to "
                f"{', '.join(able) or 'none'}" + (", see --runtime" if able else "")
            )
