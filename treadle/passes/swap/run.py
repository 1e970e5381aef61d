"""`treadle run` for the iterations of a swap plan."""

from __future__ import annotations

from pathlib import Path

import typer

from treadle.cli.output import print_json
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.errors import CheckFailed


def run_swap(folder: Path, backend: str, steps: int, timeout: float | None, as_json: bool) -> None:
    """Iterate under the plan next to a run without a limit on memory and print both."""
    from treadle.runtime.swap.compare import run_folder

    result = run_folder(folder, steps=steps, backend=backend, timeout=timeout)
    if as_json:
        print_json(result)
    else:
        losses, peaks, copied = result["losses"], result["peak_bytes"], result["copied_bytes"]
        taken, places = result["iteration_ns"], result["places"]
        equal = "equal to the last bit" if result["bit_equal"] else "not equal"
        typer.echo(f"{many(steps, 'iteration')} without a limit on memory beside the plan; values {equal}")
        typer.echo(
            f"  output       {losses['unconstrained'][-1]:.6g} without a limit, {losses['swapped'][-1]:.6g} planned"
        )
        typer.echo(
            f"  peak         {format_bytes(peaks['unconstrained'])} without a limit, {format_bytes(peaks['swapped'])} "
            f"planned: an arena of {format_bytes(peaks['arena'])} and {format_bytes(peaks['beside'])} beside it"
        )
        typer.echo(
            f"  memory       {format_bytes(peaks['memory'])} of the planned device; the host keeps "
            f"{format_bytes(result['host_bytes'])}"
        )
        if peaks["swapped"] > peaks["memory"]:
            more = format_bytes(peaks["swapped"] - peaks["memory"])
            typer.echo(f"  {more} more than that: operators allocate more beside the arena than the trace states")
        typer.echo(
            f"  copies       {format_bytes(copied['in'])} in and {format_bytes(copied['out'])} out per iteration"
        )
        typer.echo(
            f"  operators    {places['direct']} write straight into the arena, the results of {places['copied']} are "
            "copied there"
        )
        slower = f", on a machine {result['pace']:.3g} times as slow" if backend == "cpu" else ""
        planned, measured = (f"{taken[key] / 1e3:,.1f} us {key}" for key in ("planned", "measured"))
        typer.echo(f"  iteration    {planned}, {measured}{slower}")
        typer.echo(
            f"  simulator    {taken['simulated'] / 1e3:,.1f} us from the times that the operators took, "
            f"{result['simulation_error']:+.1%} of the measured"
        )
    if result["findings"]:
        raise CheckFailed(
            f"{folder}: the run broke {many(len(result['findings']), 'promise')}", tuple(result["findings"])
        )
