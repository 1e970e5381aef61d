"""`treadle profile measure --backend`: what a runtime costs a collective program."""

from __future__ import annotations

import json
from typing import Literal

import msgspec

from treadle.cli.json_output import print_json
from treadle.cli.output import live_line, note, print_table
from treadle.planner.documents import store
from treadle.planner.documents.scalars import format_bytes
from treadle.probe.resolve import load_hardware


def measure_backend(
    backend: Literal["cpu", "nccl"], world: int | None, hardware: str | None, output: str | None, as_json: bool
) -> None:
    """Measure, write the profile, print costs and residuals; where hosts measure together, on the first one only."""
    from treadle.probe.measure_cpu import measure_cpu
    from treadle.probe.measure_nccl import measure_nccl

    words = [f"treadle profile measure --backend {backend}"]
    words += [] if world is None else [f"--world {world}"]
    words += [] if hardware is None else [f"--hardware {hardware}"]
    with live_line() as show:
        show("measuring the CPU runtime" if backend == "cpu" else "measuring grouped messages of NCCL")
        measure = measure_cpu if backend == "cpu" else measure_nccl
        fitted = measure(world, None if hardware is None else load_hardware(hardware), " ".join(words))
    if fitted is None:
        return
    if fitted.doubt:
        predict = "so may be their predictions" if fitted.usable else "these costs predict nothing"
        note(f"{fitted.doubt}; {predict}, measure again on an idle machine")
    if output is not None:
        store.save(fitted.hardware, output)
        note(f"wrote {output}")
    if as_json:
        costs = {name: msgspec.to_builtins(cost) for name, cost in fitted.costs.items()}
        rows = [{**msgspec.to_builtins(row), "residual": round(row.residual, 4)} for row in fitted.rows]
        document = json.loads(store.dumps(fitted.hardware))
        facts = {"hardware": document, "costs": costs, "runs": rows, "error": round(fitted.error, 4)}
        print_json("profile-measure-backend", facts)
        return
    print_table(
        f"costs of {fitted.runtime} (95 % intervals of the fit)",
        ("cost", "value", "interval"),
        [(name, f"{cost.value:.4g}", "{:.4g} to {:.4g}".format(*cost.interval)) for name, cost in fitted.costs.items()],
    )
    print_table(
        "probe programs, us of a call",
        ("program", "message", "measured", "fitted", "residual"),
        [
            (
                row.name,
                format_bytes(row.bytes),
                f"{row.measured_us:,.1f}",
                f"{row.fitted_us:,.1f}",
                f"{row.residual:+.0%}",
            )
            for row in fitted.rows
        ],
    )
    note(f"the fit is off by {fitted.error:.0%} (root mean square)")
