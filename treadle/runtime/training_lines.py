"""The lines that `treadle run` prints on a training step: of a memory plan, or of a swap plan that PyTorch offloads."""

from __future__ import annotations

from typing import Any

from treadle.planner.documents.scalars import format_bytes


def training_lines(result: dict[str, Any]) -> list[str]:
    """`result` is that of `treadle.runtime.memory.training.run_folder`."""
    peaks, losses, seconds = result["peak_bytes"], result["losses"], result["step_seconds"]
    handed_out, target = result["allocator_peak_bytes"], result["target"]
    equal = "bit-equal" if result["bit_equal"] else f"within {result['max_gradient_difference']:.3g}"
    if result["gradient_rounding"]:
        equal += f" (plain PyTorch's own are {result['gradient_rounding']:.3g} off double precision)"
    lines = [
        f"{result['steps']} training steps, plain PyTorch next to the plan; gradients {equal}",
        f"  loss         {losses['eager'][-1]:.6g} plain, {losses['planned'][-1]:.6g} planned",
        f"  peak         {format_bytes(peaks['eager'])} plain, {format_bytes(peaks['planned'])} planned"
        + (f", {format_bytes(peaks['predicted'])} predicted" if "predicted" in peaks else "")
        + (f", budget {format_bytes(peaks['budget'])}" if "budget" in peaks else "")
        + (f" in addition to a reserve of {format_bytes(peaks['reserve'])}" if "reserve" in peaks else ""),
    ]
    if None not in handed_out.values():
        lines.append(
            f"  allocator    {format_bytes(handed_out['eager'])} plain, "
            f"{format_bytes(handed_out['planned'])} planned, workspaces of kernels included"
        )
    lines.append(f"  step         {seconds['eager'] * 1e3:.1f} ms plain, {seconds['planned'] * 1e3:.1f} ms planned")
    if target == "torch-offload":
        if result["backend"] == "cpu":
            lines.append(
                "  stand-ins copy on the CPU, within the same memory: peak and step say nothing of an accelerator"
            )
    elif target != "torch" and peaks["planned"] >= peaks["eager"]:
        lines.append(f"  {target} saves no memory for this model: plain PyTorch needs as little")
    elif target != "torch" and peaks["planned"] > peaks["budget"]:
        lines.append(f"  {target} leaves the order of recomputation to PyTorch and does not hold the budget here")
    return lines
