"""`treadle run` for plans of arrays: on processes of treadle or on Dask, next to NumPy on whole arrays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import psutil

from treadle.cli.output import print_run
from treadle.codegen import emit
from treadle.codegen.python_form import require_form
from treadle.codegen.tiling.dask_program import FILE_NAME
from treadle.passes.interface import RunOptions
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import TilingDecisions


def run_on_workers(folder: Path, plan: Plan[TilingDecisions], options: RunOptions) -> None:
    """One process for each worker of the plan; what moves must be what the plan says. Raises InputError for a plan of a
    model, and what `run_processes` raises."""
    from treadle.runtime.tiling.workers import run_processes

    workers = _require_arrays(folder, plan.decisions, options)
    start = time.perf_counter()
    found = run_processes(plan.decisions, timeout=options.timeout)
    seconds = time.perf_counter() - start
    result = _result("processes", plan.decisions, workers, found.outputs, list(found.received_bytes), seconds)
    if found.bytes != plan.decisions.moved_bytes:
        result["findings"].append(f"workers moved {found.bytes} bytes, the plan has {plan.decisions.moved_bytes}")
    print_run("run-tiles", folder, result, list(_lines(result)), options.as_json)


def run_on_dask(folder: Path, plan: Plan[TilingDecisions], options: RunOptions) -> None:
    """The generated program on a cluster of Dask, which may move more or less than the plan says."""
    from treadle.runtime.tiling.dask_cluster import cluster, run_on

    workers = _require_arrays(folder, plan.decisions, options)
    _, texts = emit.read(folder)
    require_form("dask", texts[FILE_NAME], str(folder / FILE_NAME))
    names: dict[str, Any] = {}
    with cluster(workers) as client:
        exec(compile(texts[FILE_NAME], FILE_NAME, "exec"), names)
        start = time.perf_counter()
        found = run_on(client, names["program"], {}, options.timeout)
        seconds = time.perf_counter() - start
    received = [count for _, count in sorted(found.received_bytes.items())]
    result = _result("dask", plan.decisions, workers, found.outputs, received, seconds)
    print_run("run-tiles", folder, result, list(_lines(result)), options.as_json)


def _require_arrays(folder: Path, decisions: TilingDecisions, options: RunOptions) -> int:
    """The number of workers. Raises InputError for options, plans and arrays that do not run here."""
    if options.backend != "cpu":
        raise InputError(f"found {options.backend}, expected cpu: tiles are arrays of NumPy", where="--backend")
    problem = decisions.problem
    workers = prod(axis.size for axis in problem.mesh)
    options.require_world((None, workers), "the mesh has that many workers")
    if other := next((node for node in problem.nodes if node.operator == "rule"), None):
        text = f"{other.id} is an operator of a model; generate with --target dtensor to run it"
        raise InputError(text, where=str(folder))
    if lacking := next((node for node in problem.nodes if node.operator == "value" and not node.params), None):
        text = f"the values of {lacking.outputs[0]} are not in the plan; plan the program with them"
        raise InputError(text, where=str(folder))
    return workers


def _result(
    engine: str,
    decisions: TilingDecisions,
    workers: int,
    outputs: dict[str, Any],
    received: list[int],
    seconds: float,
) -> dict[str, Any]:
    from treadle.runtime.tiling.reference import compared

    fits = _whole_bytes(decisions) <= psutil.virtual_memory().available // 2
    arrays, findings = compared(decisions.problem, outputs, {}) if fits else ([], [])
    return {
        "engine": engine,
        "workers": workers,
        "mesh": [axis.size for axis in decisions.problem.mesh],
        "arrays": arrays,
        "moved_bytes": {"planned": decisions.moved_bytes, "measured": sum(received)},
        "received_bytes": received,
        "time_ns": round(seconds * 1e9),
        "findings": findings,
    }


def _whole_bytes(decisions: TilingDecisions) -> int:
    """All arrays of the program: more than NumPy needs at a time."""
    return sum(prod(array.shape) * array.item_bytes for array in decisions.problem.arrays)


def _lines(result: dict[str, Any]) -> Iterator[str]:
    mesh = " x ".join(map(str, result["mesh"]))
    engine = "processes" if result["engine"] == "processes" else "workers of Dask"
    compared = many(len(result["arrays"]), "array") + " next to NumPy" if result["arrays"] else "too large for NumPy"
    yield f"{result['workers']} {engine}, mesh {mesh}; {compared}"
    for array in result["arrays"]:
        yield f"  {array['name']:<12} within {array['difference']:.2g} of its largest value"
    planned, measured = (result["moved_bytes"][key] for key in ("planned", "measured"))
    same = "as planned" if planned == measured else f"{format_bytes(planned)} planned"
    most = format_bytes(max(result["received_bytes"], default=0))
    yield f"  moved        {format_bytes(measured)} between workers, {same}; at most {most} to one"
    yield f"  time         {format_time(result['time_ns'])} measured, with the start of tasks"
