"""`treadle run` for sparse plans: all gradients exchanged as planned, dense, and by torch.distributed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.cli.output import print_run
from treadle.codegen.targets import PLAN_NAME
from treadle.passes.interface import RunOptions
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.sparse.decisions import SparseDecisions

BACKENDS = ("gloo", "cpu")
"""Both are processes over gloo; the second is the default of `treadle run`."""


def run_sparse(folder: Path, options: RunOptions) -> None:
    """Exchange random gradients of about the plan's counts on as many processes as it has ranks, and print what they
    found. Raises InputError for another back end or number of ranks, and what `run_folder` raises."""
    from treadle.runtime.sparse.compare import run_folder

    if options.backend not in BACKENDS:
        text = f"found {options.backend}, expected gloo; on GPUs attach the plan in a training script"
        raise InputError(text, where="--backend")
    file = folder / PLAN_NAME
    decisions = require_pass(store.load(file, Plan), SparseDecisions, str(file)).decisions
    options.require_world((None, decisions.problem.ranks), "the plan has that many ranks")
    result = run_folder(folder, steps=options.steps, timeout=options.timeout)
    lines = [
        f"{result['world']} ranks over gloo on the links of this machine; random gradients of about the plan's counts",
        *time_lines(result["time_ns"]),
        *map(gradient_line, result["gradients"]),
    ]
    print_run("run-sparse", folder, result, lines, options.as_json)


def time_lines(times: dict[str, int]) -> Iterator[str]:
    """What the exchange of all gradients took."""
    from treadle.runtime.sparse.compare import off_by

    yield f"  time    {format_time(times['planned'])} planned, {format_time(times['measured'])} measured"
    line = off_by(times["planned"], times["measured"], times["link_planned"], times["link_measured"])
    if line is not None:
        yield f"          {line}"
    yield f"  dense   {format_time(times['dense_planned'])} planned, {format_time(times['dense_measured'])} measured"
    yield f"  torch   {format_time(times['torch_measured'])} measured of its own allreduce"


def gradient_line(found: dict[str, Any]) -> str:
    """What was found of one gradient."""
    moved = found["bytes"]
    sums = "equal to the dense ones" if found["sums_equal"] else "not those of a dense exchange"
    exact = "as counted for these index sets" if moved["exact"] else "not as counted for these index sets"
    planned, measured = format_bytes(moved["planned"]), format_bytes(moved["measured"])
    return f"  {found['name']} by {found['scheme']}: sums {sums}; {planned} planned, {measured} measured, {exact}"
