"""Memory plans for five networks at the batches of MONeT, section 4.6, priced by the roofline of a P100.

Peer: Chen's segments ("Training Deep Nets with Sublinear Memory Cost"), the fastest of 1 to 2 sqrt(N) + 1 segments,
cut at equal bytes or near there where least crosses, whose exact peak is within the budget.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from fractions import Fraction
from importlib import import_module

from msgspec.structs import replace

from benchmarks.common import Row, Table, command, progress
from planner.errors import InfeasibleError, LimitError
from planner.hardware import VERSION, Device, Hardware
from planner.memory.decisions import MemoryDecisions
from planner.memory.extract import problem_from_trace
from planner.memory.heuristics import Planner, chen, crossings
from planner.memory.lower import lower, store_all
from planner.memory.planning import MemoryOptions, budget_in_bytes, plan_problem
from planner.memory.problem import MemoryProblem
from planner.memory.simulate import simulate

NETWORKS = {
    "ResNet-50 b184": "examples.models.resnet50:resnet50",
    "VGG-16 b176": "examples.models.vgg16:vgg16",
    "GoogLeNet b320": "examples.models.googlenet:googlenet",
    "MobileNet-V2 b256": "examples.models.mobilenet_v2:mobilenet_v2",
    "U-Net b11": "examples.models.unet:unet",
}
SHARES = (Fraction(4, 5), Fraction(3, 5), Fraction(1, 2), Fraction(2, 5))
SECONDS = 20.0
"""Wall clock of the solver for each point; the source gave it up to 24 hours."""

P100 = Hardware(
    version=VERSION,
    name="p100-pcie-16gb",
    nodes=1,
    devices=(
        Device(
            model="P100-PCIE-16GB",
            kind="gpu",
            count=1,
            memory_bytes=16 * 2**30,
            peak_flops={"float64": 4.7e12, "float32": 9.3e12, "float16": 18.7e12},
            memory_bandwidth=732e9,
        ),
    ),
    sources={"devices": "NVIDIA Tesla P100 PCIe data sheet: 16 GB at 732 GB/s, 4.7/9.3/18.7 TFLOP/s"},
)


def problem_of(spec: str) -> MemoryProblem:
    """The memory problem of the step that MODULE:FUNCTION describes."""
    from treadle.capture.costs import with_roofline
    from treadle.capture.graph import capture

    module, _, function = spec.partition(":")
    trace = capture(getattr(import_module(module), function), spec, "train")
    return problem_from_trace(with_roofline(trace, P100), 0)


def tables() -> Iterator[Table]:
    """Overhead of memory plans of five networks at 0.8x to 0.4x of store-all, with bounds, beside Chen's segments."""
    for name, spec in NETWORKS.items():
        problem = problem_of(spec)
        whole = simulate(problem, lower(problem, store_all(problem)))
        rows = []
        for share in SHARES:
            progress(f"memory_planning: {name} at {float(share)}x")
            rows.append(point(problem, share))
        yield Table(
            f"{name}: store-all peak {whole.peak_bytes / 2**30:.2f} GiB, {whole.time_ns / 1e6:.1f} ms, "
            f"{len(problem.fwd)} forward and {len(problem.bwd)} backward nodes",
            rows,
            (f"Overhead, bound and Chen in % of store-all's time; at most {SECONDS:g} s of solver for each point.",),
        )


def point(problem: MemoryProblem, share: Fraction) -> Row:
    """One network at one budget, `share` of its store-all peak."""
    whole = simulate(problem, lower(problem, store_all(problem)))
    budget = budget_in_bytes(problem, share)
    planner = Planner.of(replace(problem, budget_bytes=budget))
    fitting = [planner.try_out(kept) for kept in (*chen(problem), *crossings(problem))]
    peer = min((found.time_ns for found in fitting if found is not None), default=None)
    row: Row = {"budget x": float(share), "budget GiB": budget / 2**30}
    start = time.perf_counter()
    try:
        plan = plan_problem(
            replace(problem, budget_bytes=budget), options=MemoryOptions(time_limit_s=SECONDS, gap=0.001, workers=2)
        )
    except (InfeasibleError, LimitError) as error:
        return row | {"result": type(error).__name__, "solver s": time.perf_counter() - start}
    seconds = time.perf_counter() - start
    found = plan.decisions
    assert isinstance(found, MemoryDecisions)
    return row | {
        "peak GiB": found.exact_peak_bytes / 2**30,
        "overhead %": _percent(found.objective_ns, whole.time_ns),
        "bound %": _percent(int(plan.certificate.lower_bound), whole.time_ns),
        "gap %": 100 * plan.certificate.gap,
        "Chen %": None if peer is None else _percent(peer, whole.time_ns),
        "Chen / treadle time": None if peer is None else peer / found.objective_ns,
        "solver s": seconds,
        "result": f"{plan.provenance.method}{', limit' if plan.provenance.limit_fired else ''}",
    }


def _percent(time_ns: int, whole_ns: int) -> float:
    return 100 * (time_ns / whole_ns - 1)


main = command(tables)

if __name__ == "__main__":
    main()
