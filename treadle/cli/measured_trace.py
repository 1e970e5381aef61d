"""Costs for a captured trace without times, where a plan is made for this machine."""

from __future__ import annotations

from pathlib import Path

from treadle.cli.output import live_line, note
from treadle.planner.documents import store
from treadle.planner.documents.trace import Trace


def measured_trace(trace: Trace, file: str, output: str) -> tuple[Trace, Path]:
    """`trace`, from `file`, with costs measured here, and the file next to `output` into which it is written: `apply`,
    `check` and `generate` look for a plan's inputs next to the plan.

    Raises InputError where an op cannot run here, MissingBackendError without PyTorch.
    """
    from treadle.capture.load import require_torch

    require_torch()
    from treadle.capture.costs import with_measured_in_step
    from treadle.capture.costs.cache import kept
    from treadle.planner.graph.implementations.convolution import with_reading

    device = "cuda" if "'device': 'cuda" in repr([(op.args, op.kwargs) for op in trace.ops]) else "cpu"
    with live_line() as show, kept(device) as known:
        measured = with_measured_in_step(
            with_reading(trace),
            lambda done, of, target: show(f"measuring {done}/{of} {target}"),
            device=device,
            known=known,
        )
    name = Path(file).name.removesuffix(".json").removesuffix(".trace")
    target = Path(output).parent / f"{name}.measured.trace.json"
    store.save(measured, target)
    note("the trace has no times: measured them here; plan for another machine with --hardware")
    return measured, target
