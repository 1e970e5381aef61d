"""`treadle run`: execute artefacts on this machine and compare with the framework."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from treadle.cli.options import Json, seconds, whole
from treadle.passes.interface import DEFAULT_SIZES, RunOptions
from treadle.planner.errors import InputError


def command(
    *,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder of artefacts, or one MSCCL XML file.")],
    backend: Annotated[
        Literal["cpu", "fibers", "cuda", "gloo", "nccl"],
        typer.Option(help="Processes, fibers of one process, or GPUs; collective: grouped messages of gloo or NCCL."),
    ] = "cpu",
    world: Annotated[int | None, whole("Processes; a collective needs its number of ranks.", least=1)] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="COUNTS",
            help=f"Collective: element counts, comma between. [default: {DEFAULT_SIZES}; fewer on fibers]",
        ),
    ] = None,
    dtypes: Annotated[
        str | None,
        typer.Option(metavar="TYPES", help="Collective: types, comma between. [default: two or four, by backend]"),
    ] = None,
    ops: Annotated[str, typer.Option(metavar="OPS", help="Collective on cpu: sum, min, max, avg.")] = "sum",
    repeats: Annotated[int, whole("Collective or fusion: timed runs; on fibers, random orders.", least=1)] = 5,
    timeout: Annotated[
        float | None,
        seconds(
            "--timeout", "Give up after this time; swap plan: that of one iteration. [default: 600 for a swap plan]"
        ),
    ] = None,
    steps: Annotated[int, whole("Memory or swap plan: training steps.", least=1)] = 3,
    as_json: Json = False,
) -> None:
    """Execute the artefacts in DIR, or one MSCCL XML file, and compare them with plain PyTorch.

    This executes code that DIR contains, and imports the model that it names: run only what you trust
    (docs/security.md).

    A collective runs with one process per rank (cpu), as compiled kernels whose threads are fibers of one process
    (fibers, needs g++), or on GPUs (cuda, needs nvcc; ranks share a GPU where there are too few). Across hosts GPUs
    exchange grouped messages (nccl, one GPU a process); gloo runs the same on CPUs. Size N means N
    elements as the collective counts them: what a rank contributes (allgather, gather), receives (reducescatter,
    scatter), exchanges with each peer (alltoall), one part of a pattern, else the whole buffer.

    Kernels of a fusion plan run on the same three back-ends and are compared with the reference interpreter: on whole
    numbers, which must be equal to the last bit, and on floats. What they send, load and store is counted, but not on
    GPUs.
    """
    from treadle.codegen import emit
    from treadle.codegen.targets import targets_for as codegen_room
    from treadle.passes import room

    place = Path(folder)
    target = emit.read(folder)[0].target if place.is_dir() else "msccl-xml"
    name = _pass_of(place, target)
    not_run = {made.name: made.not_run for made in codegen_room(name).targets}
    if why := not_run.get(target):
        raise InputError(why, where=folder)
    room(name).run(place, target, RunOptions(backend, world, sizes, dtypes, ops, repeats, timeout, steps, as_json))


def _pass_of(folder: Path, target: str) -> str:
    """The pass of the plan that lies in the folder; where a target belongs to one pass alone, that."""
    from treadle.codegen.targets import PLAN_NAME, passes_with
    from treadle.planner.documents import store
    from treadle.planner.documents.plan import Plan
    from treadle.planner.passes import name_of

    owners = passes_with(target)
    if len(owners) > 1 and (folder / PLAN_NAME).is_file():
        return name_of(store.load(folder / PLAN_NAME, Plan).decisions)
    return owners[0]
