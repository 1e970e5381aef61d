"""`treadle run` for the training step of a memory plan."""

from __future__ import annotations

from pathlib import Path

import typer

from treadle.cli.output import print_json
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.errors import CheckFailed


def run_memory(folder: Path, backend: str, steps: int, as_json: bool) -> None:
    """Train under the plan next to plain PyTorch and print both."""
    from treadle.runtime.memory.training import run_folder

    result = run_folder(folder, steps=steps, backend=backend)
    if as_json:
        print_json(result)
    else:
        peaks, losses, seconds = result["peak_bytes"], result["losses"], result["step_seconds"]
        handed_out = result["allocator_peak_bytes"]
        equal = "bit-equal" if result["bit_equal"] else f"within {result['max_gradient_difference']:.3g}"
        if result["gradient_rounding"]:
            equal += f" (plain PyTorch's own are {result['gradient_rounding']:.3g} off double precision)"
        typer.echo(f"{steps} training steps, plain PyTorch beside the plan; gradients {equal}")
        typer.echo(f"  loss         {losses['eager'][-1]:.6g} plain, {losses['planned'][-1]:.6g} planned")
        typer.echo(
            f"  peak         {format_bytes(peaks['eager'])} plain, {format_bytes(peaks['planned'])} planned"
            + (f", {format_bytes(peaks['predicted'])} predicted" if "predicted" in peaks else "")
            + (f", budget {format_bytes(peaks['budget'])}" if "budget" in peaks else "")
            + (f" beside a reserve of {format_bytes(peaks['reserve'])}" if "reserve" in peaks else "")
        )
        if None not in handed_out.values():
            typer.echo(
                f"  allocator    {format_bytes(handed_out['eager'])} plain, "
                f"{format_bytes(handed_out['planned'])} planned, workspaces of kernels included"
            )
        typer.echo(f"  step         {seconds['eager'] * 1e3:.1f} ms plain, {seconds['planned'] * 1e3:.1f} ms planned")
        if result["target"] == "torch-offload":
            if backend == "cpu":
                typer.echo(
                    "  stand-ins copy on the CPU, within the same memory: peak and step say nothing of an accelerator"
                )
        elif result["target"] != "torch" and peaks["planned"] >= peaks["eager"]:
            typer.echo(f"  {result['target']} saves no memory for this model: plain PyTorch needs as little")
        elif result["target"] != "torch" and peaks["planned"] > peaks["budget"]:
            typer.echo(
                f"  {result['target']} leaves the order of recomputation to PyTorch and does not hold the budget here"
            )
    if result["findings"]:
        raise CheckFailed(
            f"{folder}: the run broke {many(len(result['findings']), 'promise')}", tuple(result["findings"])
        )
