"""Planned collectives on CPU processes, compared with gloo's own."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.common import Row, Table, progress
from treadle.codegen.collective.lower import lower
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.collective import Collective
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.documents.sketch import Sketch
from treadle.planner.passes.collective.planning import CollectiveOptions, make_request, plan_collective
from treadle.probe.resolve import load_hardware
from treadle.runtime.collective.compare import compare

PROFILE, SKETCH = "mesh4", "mesh"
COLLECTIVES: tuple[Collective, ...] = ("allreduce", "allgather", "reducescatter", "alltoall")
SIZES = (2**12, 2**16, 2**20, 2**24)
REPEATS = 15


def tables() -> Iterator[Table]:
    """CPU execution: planned collectives of 4 processes over gloo's messages, compared with gloo's own."""
    rows = [row for collective in COLLECTIVES for row in measured(collective)]
    yield Table(
        "4 processes on this machine, float32, medians of the slowest rank",
        rows,
        ("ratio: our time over gloo's, in turns in one run; below 1 is faster than gloo",),
    )


def measured(collective: Collective) -> Iterator[Row]:
    """One plan for the largest size, executed at every size."""
    progress(f"{collective} on 4 processes")
    sketch = store.load(resources.locate("sketches", SKETCH), Sketch)
    plan = plan_collective(
        make_request(collective, load_hardware(PROFILE), sketch, SIZES[-1]), options=CollectiveOptions(instances=1)
    )
    ranks = plan.decisions.ranks
    program = lower(plan.decisions, inplace=collective == "allreduce")
    elements = [size // 4 // (ranks if collective in ("reducescatter", "alltoall") else 1) for size in SIZES]
    for row in compare({collective: program}, None, sizes=elements, dtypes=("float32",), repeats=REPEATS):
        yield {
            "collective": collective,
            "input": format_bytes(row.bytes),
            "ours ms": row.seconds * 1e3,
            "gloo ms": row.reference_seconds * 1e3,
            "ratio": row.seconds / row.reference_seconds,
            "right": row.good,
        }
