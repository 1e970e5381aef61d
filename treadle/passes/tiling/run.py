"""`treadle run` for plans of tiling, by target."""

from __future__ import annotations

from pathlib import Path

from treadle.cli.output import note
from treadle.codegen.targets import PLAN_NAME
from treadle.passes.interface import RunOptions
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InputError
from treadle.planner.passes import require_pass
from treadle.planner.passes.tiling.decisions import TilingDecisions


def run_tiling(folder: Path, target: str, options: RunOptions) -> None:
    """Run the artefacts in `folder` and print what was seen. Raises InputError for a target that nothing runs."""
    where = str(folder / PLAN_NAME)
    plan = require_pass(store.load(where, Plan), TilingDecisions, where)
    if named := sorted({node.function for node in plan.decisions.problem.nodes if ":" in node.function}):
        note(f"runs functions that the plan names: {', '.join(named)}")
    match target:
        case "dtensor":
            from treadle.passes.tiling.dtensor_run import run_dtensor

            run_dtensor(folder, plan, options)
        case "dask":
            from treadle.passes.tiling.array_run import run_on_dask

            run_on_dask(folder, plan, options)
        case "tiling-config":
            from treadle.passes.tiling.array_run import run_on_workers

            run_on_workers(folder, plan, options)
        case _:
            raise InputError(f"found a text for {target}, expected one that runs", where=str(folder))
