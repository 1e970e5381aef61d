"""Fused schedules on CPU processes, compared with their unfused forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from benchmarks.common import Row, Table, progress
from benchmarks.fusion.counters import counters
from benchmarks.fusion.schedules import optimizer, tail
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.runtime.fusion import processes
from treadle.runtime.fusion.build import build
from treadle.runtime.fusion.data import fill
from treadle.runtime.fusion.runs import RunReport, Runs
from treadle.runtime.fusion.tensors import Tensors

RANKS = (2, 4)
REPEATS, WARM = 15, 3


@dataclass(frozen=True)
class Case:
    """Schedules by name, all compared with the first, and the sizes that they run at."""

    name: str
    schedules: Mapping[str, Program]
    sizes: tuple[dict[str, int], ...]


def cases() -> Iterator[Case]:
    yield Case("adam", optimizer("adam"), tuple({"N": 1 << bits} for bits in (12, 16, 20)))
    yield Case("attention", tail("attention"), ({"B": 1, "S": 32, "H": 64}, {"B": 1, "S": 64, "H": 128}))


def tables() -> Iterator[Table]:
    """CPU execution: fused schedules of 2 and 4 processes and their unfused forms, with the traffic of both."""
    for case in cases():
        rows = [row for ranks in RANKS for extents in case.sizes for row in measured(case, Bindings(extents, ranks))]
        yield Table(
            f"{case.name} on processes of this machine, medians of {REPEATS} runs of the slowest rank",
            rows,
            (
                f"ratio: time of {next(iter(case.schedules))} over this one's; above 1 is faster",
                "traffic: elements that a rank loads and stores, without products, counted and planned;"
                " volume: elements that it sends",
            ),
        )


def measured(case: Case, bindings: Bindings) -> Iterator[Row]:
    size = " ".join(f"{name}={extent}" for name, extent in bindings.extents.items())
    progress(f"{case.name} {size} on {bindings.ranks} processes")
    first = 0.0
    for name, schedule in case.schedules.items():
        lowered = lower(schedule, bindings)
        seconds = median(run(lowered, repeats=REPEATS + WARM).seconds[WARM:])
        first = first or seconds
        traffic, volume = counters(schedule, bindings, run(lowered, counts=True).counted)
        yield {
            "schedule": name,
            "size": size,
            "ranks": bindings.ranks,
            "launches": len(lowered.launches),
            "ms": seconds * 1e3,
            "ratio": first / seconds,
            "traffic": float(traffic.mean),
            "planned traffic": float(traffic.planned),
            "volume": float(volume.mean),
            "planned volume": float(volume.planned),
        }


def run(lowered: Lowered, *, counts: bool = False, repeats: int = 1) -> RunReport:
    compiled = build(lowered, "process", counts=counts, quickly=counts)
    tensors = Tensors(lowered.buffers, compiled.ranks, shared=True)
    try:
        fill(tensors, range(compiled.ranks), lowered)
        return processes.run(compiled, tensors, Runs(repeats=repeats))
    finally:
        tensors.close()
