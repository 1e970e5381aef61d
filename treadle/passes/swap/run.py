"""`treadle run` for the iterations of a swap plan."""

from __future__ import annotations

from pathlib import Path

from treadle.cli.output import print_run
from treadle.planner.documents.scalars import format_bytes, many


def run_swap(folder: Path, backend: str, steps: int, timeout: float | None, as_json: bool) -> None:
    """Iterate under the plan next to a run without a limit on memory and print both."""
    from treadle.runtime.swap.compare import run_folder

    result = run_folder(folder, steps=steps, backend=backend, timeout=timeout)
    losses, peaks, copied = result["losses"], result["peak_bytes"], result["copied_bytes"]
    taken, places = result["iteration_ns"], result["places"]
    equal = "equal to the last bit" if result["bit_equal"] else "not equal"
    more = peaks["swapped"] - peaks["memory"]
    beyond = f"  {format_bytes(more)} more than that: operators allocate more outside the arena than the trace states"
    slower = f", on a machine {result['pace']:.3g} times as slow" if backend == "cpu" else ""
    planned, measured = (f"{taken[key] / 1e3:,.1f} us {key}" for key in ("planned", "measured"))
    lines = [
        f"{many(steps, 'iteration')} without a limit on memory, and as many under the plan; values {equal}",
        f"  output       {losses['unconstrained'][-1]:.6g} without a limit, {losses['swapped'][-1]:.6g} planned",
        f"  peak         {format_bytes(peaks['unconstrained'])} without a limit, {format_bytes(peaks['swapped'])} "
        f"planned: an arena of {format_bytes(peaks['arena'])} and {format_bytes(peaks['outside'])} outside it",
        f"  memory       {format_bytes(peaks['memory'])} of the planned device; the host keeps "
        f"{format_bytes(result['host_bytes'])}",
        *([beyond] if more > 0 else []),
        f"  copies       {format_bytes(copied['in'])} in and {format_bytes(copied['out'])} out per iteration",
        f"  operators    {places['direct']} write straight into the arena, the results of {places['copied']} are "
        "copied there",
        f"  iteration    {planned}, {measured}{slower}",
        f"  simulator    {taken['simulated'] / 1e3:,.1f} us from the times that the operators took, "
        f"{result['simulation_error']:+.1%} of the measured",
    ]
    print_run("run-swap", folder, result, lines, as_json)
