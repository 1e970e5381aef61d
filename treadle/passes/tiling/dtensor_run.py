"""`treadle run` for target dtensor: the plan on one process per worker, next to plain PyTorch or NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from treadle.cli.output import note, print_run
from treadle.codegen import emit
from treadle.codegen.tiling.dtensor import of_model
from treadle.passes.interface import RunOptions
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import TilingDecisions

BACKENDS = ("gloo", "cpu")
"""Both are processes over gloo; the second is the default of `treadle run`."""


def run_dtensor(folder: Path, plan: Plan[TilingDecisions], options: RunOptions) -> None:
    """Run the module in `folder` and print what was seen. Raises InputError for another back end or number of
    workers, and what the runs raise."""
    if options.backend not in BACKENDS:
        text = f"found {options.backend}, expected gloo; on GPUs call treadle.shard in a training script"
        raise InputError(text, where="--backend")
    workers = prod(axis.size for axis in plan.decisions.problem.mesh)
    options.require_world((None, workers), "the mesh has that many workers")
    manifest, texts = emit.read(folder)
    if not of_model(plan.decisions):
        from treadle.codegen.tiling.dtensor_array import FILE_NAME as ARRAYS
        from treadle.runtime.tiling.dtensor import run_arrays

        result = run_arrays(plan, texts[ARRAYS], timeout=options.timeout)
        print_run("run-tiling", folder, result, list(array_lines(result)), options.as_json)
        return

    from treadle.codegen.tiling.dtensor_model import FILE_NAME
    from treadle.runtime.tiling.training import run_model

    if manifest.entry is None:
        text = "found no entry, expected MODULE:FUNCTION of the model"
        raise InputError(text, where=str(folder), path="$.entry")
    trace = _trace(folder, plan)
    if trace is None:
        note("no trace next to the plan: DTensor's rules are not asked")
    result = run_model(
        plan,
        texts[FILE_NAME],
        manifest.entry,
        trace,
        steps=options.steps,
        autocast=manifest.facts.get("autocast"),
        timeout=options.timeout,
    )
    print_run("run-tiling", folder, result, list(model_lines(result)), options.as_json)


def _trace(folder: Path, plan: Plan[TilingDecisions]) -> Trace | None:
    """The trace of the plan, in the folder or next to it."""
    reference = plan.inputs.get("trace")
    name = None if reference is None else Path(reference.file).name
    places = () if name is None else (folder / name, folder.parent / name)
    for place in places:
        if place.is_file():
            trace = store.load(place, Trace)
            if reference is not None and store.digest(trace) == reference.digest:
                return trace
    return None


def model_lines(result: dict[str, Any]) -> Iterator[str]:
    """What was seen of a model."""
    yield f"{_workers(result)}; {many(result['steps'], 'training step')}, plain PyTorch next to the plan"
    losses = result["losses"]
    within = f"parameters within {result['difference']:.2g} of their largest values"
    yield f"  loss         {losses['plain'][-1]:.7g} plain, {losses['planned'][-1]:.7g} planned; {within}"
    yield from _common(result)
    if result["confirmed"]:
        line = f"  rules        {many(result['confirmed'], 'call')} as DTensor's dispatcher has them"
        yield line + (f"; it has none for {', '.join(result['unknown'])}" if result["unknown"] else "")


def array_lines(result: dict[str, Any]) -> Iterator[str]:
    """What was seen of a program of arrays."""
    yield f"{_workers(result)}; {many(len(result['arrays']), 'array')} next to NumPy"
    for array in result["arrays"]:
        yield f"  {array['name']:<12} within {array['difference']:.2g} of its largest value"
    yield from _common(result)


def _workers(result: dict[str, Any]) -> str:
    mesh = " x ".join(map(str, result["mesh"]))
    return f"{result['world']} workers over gloo, mesh {mesh}"


def _common(result: dict[str, Any]) -> Iterator[str]:
    planned, counted = (result["collectives"][key] for key in ("planned", "counted"))
    same = "as planned" if planned == counted else f"planned were {_counts(planned)}"
    yield f"  collectives  {_counts(counted)} counted on a worker, {same}; {format_bytes(result['moved_bytes'])} move"
    times = result["time_ns"]
    gap = f"{times['planned'] / times['measured'] - 1:+.0%}" if times["measured"] else "nothing"
    yield f"  time         {format_time(times['planned'])} planned, {format_time(times['measured'])} measured: {gap}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
