"""Costs for a captured trace without times, where a plan is made for the machine at hand."""

from __future__ import annotations

from pathlib import Path

from planner import documents
from planner.trace import Trace
from treadle.cli.output import live_line, note


def measured_trace(trace: Trace, file: str) -> tuple[Trace, Path]:
    """`trace` with costs measured here, and the file beside `file` into which it is written for `apply` and `check`.

    Raises InputError where an op cannot run here, MissingBackendError without PyTorch.
    """
    from treadle.capture.load import require_torch

    require_torch()
    from planner.implementations.convolution import with_reading
    from treadle.capture.costs import with_measured_in_step
    from treadle.capture.costs.cache import kept

    device = "cuda" if "'device': 'cuda" in repr([(op.args, op.kwargs) for op in trace.ops]) else "cpu"
    with live_line() as show, kept(device) as known:
        measured = with_measured_in_step(
            with_reading(trace),
            lambda done, of, target: show(f"measuring {done}/{of} {target}"),
            device=device,
            known=known,
        )
    path = Path(file)
    target = path.with_name(f"{path.name.removesuffix('.json').removesuffix('.trace')}.measured.trace.json")
    documents.save(measured, target)
    note(f"the trace has no times: measured them here into {target}; plan for another machine with --hardware")
    return measured, target
