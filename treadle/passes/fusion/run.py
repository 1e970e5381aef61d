"""`treadle run` for the kernels of a fusion plan."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from treadle.cli.json_output import print_json
from treadle.cli.output import print_table
from treadle.planner.documents.scalars import many


def run_fusion(folder: Path, backend: Any, repeats: int, timeout: float | None, as_json: bool) -> None:
    """Compare the kernels in `folder` with the interpreter and print a row for each kind of data."""
    from treadle.planner.errors import CheckFailed, InputError
    from treadle.runtime.fusion.folder import run_folder
    from treadle.runtime.joined import joined_rank, started_rank

    if backend not in ("cpu", "fibers", "cuda"):
        raise InputError(f"found {backend!r}, expected cpu, fibers or cuda", where="--backend")
    across = backend == "cpu" and joined_rank() is not None
    with started_rank() if across else nullcontext() as started:
        rows = run_folder(folder, backend, repeats=repeats, timeout=timeout, started=started)
    if started is not None and started.rank:
        if not all(row.good for row in rows):
            raise CheckFailed(f"{folder}: wrong, as rank 0 reports")
        return
    if as_json:
        print_json("run-fusion", {"results": [{**asdict(row), "good": row.good} for row in rows]})
    else:
        print_table(
            f"{folder}: {many(rows[0].runs, 'run')} on {_place(backend, started is not None)}",
            ("data", "values", "ms", "sent", "predicted", "traffic", "predicted"),
            [
                (
                    row.data,
                    ("equal to the last bit" if row.bits else "equal within rounding") if row.good else "wrong",
                    f"{row.seconds * 1e3:.3f}",
                    f"{row.sent + row.sent_on:,}",
                    f"{row.planned_sent + row.planned_sent_on:,.0f}",
                    f"{row.traffic:,}",
                    f"{row.planned_traffic:,.0f}",
                )
                for row in rows
            ],
        )
        for row in rows:
            for line in row.undecided:
                typer.echo(f"{row.data}, undecided: {line}; either side is right")
        if backend != "cuda":
            typer.echo("sent and traffic are elements of the rank that has most of them, counted while it runs")
    wrong = [f"{row.data}: {line}" for row in rows for line in row.problems]
    if wrong:
        raise CheckFailed(f"{folder}: {many(len(wrong), 'tensor')} wrong", tuple(wrong))


def _place(backend: str, started: bool) -> str:
    if started:
        return "processes that were started together"
    return {"cpu": "processes of this machine", "fibers": "fibers, in random orders", "cuda": "GPUs"}[backend]
