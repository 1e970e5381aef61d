"""Swap plans on real streams: bits, allocations after warm-up, and the time of an iteration against the simulator."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from msgspec.structs import replace as with_fields

from benchmarks.common import Row, Table
from benchmarks.gpu.items import Outcome
from treadle.planner.errors import CheckFailed

HARDWARE = "ndv5"
"""The profile whose roofline and copies the plans are priced with."""
ENTRIES = ("examples.models.resnet50:resnet50", "examples.models.gpt2:small")
DRY_ENTRIES = ("examples.models.gpt2:tiny",)
SHARE = Fraction(6, 10)
"""Memory of the device, of the ideal footprint."""
SECONDS = 8.0
"""The most that the search for a plan takes."""


def check(dry: bool) -> Outcome:
    """Raises CheckFailed where a value differs in a bit or an iteration allocates."""
    _repeatable()
    rows: list[Row] = []
    findings: list[str] = []
    for entry in DRY_ENTRIES if dry else ENTRIES:
        row, found = _run(entry, "cpu" if dry else "cuda")
        rows.append(row)
        findings += [f"{entry}: {finding}" for finding in found]
    if findings:
        raise CheckFailed(findings[0], tuple(findings))
    errors = ", ".join(f"{row['simulator off']:+.0%}" for row in rows)
    return Outcome(f"{len(rows)} steps equal to the last bit; simulator off by {errors}", (Table("Swap plans", rows),))


def _repeatable() -> None:
    """Kernels that add up in no fixed order would differ between two runs of the same plan."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False


def _run(entry: str, backend: str) -> tuple[Row, list[str]]:
    from treadle.capture.costs import with_measured, with_roofline
    from treadle.capture.graph import capture
    from treadle.capture.load import load_function, on_device
    from treadle.capture.optimizer import with_optimizer
    from treadle.codegen import targets
    from treadle.codegen.emit import write
    from treadle.planner.documents import store
    from treadle.planner.documents.plan import InputRef
    from treadle.planner.passes.swap.extract import machine_of
    from treadle.planner.passes.swap.planning import SwapOptions, inplace_problem, plan_swap, with_memory
    from treadle.planner.search.bound import Argument, Bound
    from treadle.probe.resolve import load_hardware
    from treadle.runtime.swap.compare import run_folder

    hardware = load_hardware(HARDWARE)
    captured = with_optimizer(capture(on_device(load_function(entry), backend), entry, "train"), "adam")
    captured = with_fields(captured, entry=entry)
    trace = with_measured(captured, device="cuda") if backend == "cuda" else with_roofline(captured, hardware)
    task = inplace_problem(trace, machine_of(hardware))
    problem = with_memory(task.problem, SHARE)
    # The bound of the search needs a solver; this one does not.
    task = replace(task, problem=problem, bound=Bound(problem.ideal_ns, Argument("compute"), "any order"))
    inputs = {"trace": InputRef(file="step.trace.json", digest=store.digest(trace))}
    plan = plan_swap(task, options=SwapOptions(generations=2, time_limit_s=SECONDS), inputs=inputs)
    with tempfile.TemporaryDirectory() as name:
        write(targets.generate(plan, "swap.plan.json", trace, "torch-swap", None), Path(name))
        found = run_folder(name, backend=backend, steps=2)
    times, peaks = found["iteration_ns"], found["peak_bytes"]
    row: Row = {
        "step": entry,
        "planned ms": times["planned"] / 1e6,
        "measured ms": times["measured"] / 1e6,
        "simulated ms": times["simulated"] / 1e6,
        "simulator off": found["simulation_error"],
        "peak MiB": peaks["swapped"] / 2**20,
        "without a limit MiB": peaks["unconstrained"] / 2**20,
        "copied MiB": sum(found["copied_bytes"].values()) / 2**20,
    }
    return row, list(found["findings"])
