"""Fused schedules: values against the interpreter, time against the unfused one, by `benchmarks.fusion.gpu`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.common import Row, Table
from benchmarks.fusion import gpu
from benchmarks.gpu.items import Kernel, Outcome
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.runtime.fusion.build import Compiled, build
from treadle.runtime.fusion.compare import compare
from treadle.runtime.fusion.runs import Runs


def kernels(dry: bool) -> Iterator[Kernel]:
    """Every schedule of every case, in a dry run at the smallest size only."""
    for case in gpu.cases():
        for name, schedule in case.schedules.items():
            for size in case.sizes[:1] if dry else case.sizes:
                try:
                    lowered = lower(schedule, case.bindings(size), channels=gpu.CHANNELS)
                except InputError:
                    continue  # the check reports it
                yield Kernel(
                    f"{case.name} {name} {size}", lambda arch, lowered=lowered: build(lowered, "cuda", arch=arch)
                )


def _built(lowered: Lowered, arch: str | None) -> Compiled:
    return build(lowered, "cuda", arch=arch)


def check(dry: bool) -> Outcome:
    """Raises CheckFailed naming each schedule that computes something else than the interpreter."""
    if dry:
        return _on_fibers()
    tables = []
    for case in gpu.cases():
        rows = [row for size in case.sizes for row in gpu.measured(case, size)]
        tables.append(Table(f"{case.name}: {gpu.RANKS} ranks", rows))
    rows = [row for table in tables for row in table.rows]
    wrong = tuple(f"{row['schedule']}: wrong values" for row in rows if row.get("right") is False)
    if wrong:
        raise CheckFailed(f"{len(wrong)} of {len(rows)} schedules compute something else: {wrong[0]}", wrong)
    return Outcome("; ".join(f"{table.title.partition(':')[0]} {_best(table.rows)}" for table in tables), tuple(tables))


def _best(rows: list[Row]) -> str:
    """The greatest gain over the unfused schedule."""
    ratios = {row["schedule"]: row["ratio"] for row in rows if "ratio" in row}
    if not ratios:
        return "refused"
    best = max(ratios, key=lambda name: float(ratios[name]))
    return f"{best} {ratios[best]:.2f}x"


def _on_fibers() -> Outcome:
    """The last schedule of each case, the one that is fused most, small and as fibers."""
    for case in gpu.cases():
        name, schedule = list(case.schedules.items())[-1]
        if not _right(schedule, case.bindings(gpu.RANKS)):
            raise CheckFailed(f"{case.name}: {name} computes something else")
    return Outcome(f"{len(gpu.cases())} fused schedules right as fibers")


def _right(schedule: Program, bindings: Bindings) -> bool:
    lowered = lower(schedule, bindings, channels=1)
    return compare(build(lowered, quickly=True), lowered, Runs(repeats=1), kind="floats").good
