"""Registers, spilled bytes and shared memory of every kernel generated for the shipped programs, as nvcc reports."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from benchmarks.common import Row, Table, progress
from benchmarks.fusion.planning import WORKLOADS
from benchmarks.fusion.ptxas import Resources, resources
from benchmarks.fusion.schedules import program
from treadle.codegen.fusion.lower import Lowered, lower
from treadle.planner.machine.rates import Machine, machine_of
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.ranking import rank, search, useful
from treadle.planner.passes.fusion.stages import stages
from treadle.probe.resolve import load_hardware

ARCHITECTURES = ("sm_80", "sm_90")
RANKS = 8
EXTENTS = {"N": 1 << 20, "B": 2, "S": 512, "H": 1024, "T": 1024, "F": 4096}
"""Sizes of the kernels; the schedules are the best ones at the largest sizes of fusion.planning."""
PARTS = 360
"""Number of tensors that hold LAMB's parameters."""


def tables() -> Iterator[Table]:
    """Registers, spills and shared memory of the kernels of all shipped programs for sm_80 and sm_90."""
    if shutil.which("nvcc") is None:
        yield Table("generated kernels: registers", [], ("no nvcc",))
        return
    machine = machine_of(load_hardware("dgx2", 16))
    jobs = [(name, which, made) for name in WORKLOADS for which, made in lowered(name, machine)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = [row for found in pool.map(lambda job: list(_rows(*job)), jobs) for row in found]
    most = ", ".join(f"{arch} {max(row[f'{arch} registers'] for row in rows)}" for arch in ARCHITECTURES)
    spilled = sum(any(row[f"{arch} spilled"] for arch in ARCHITECTURES) for row in rows)
    yield Table(
        f"Generated kernels for {RANKS} ranks of a group: registers of a thread, bytes spilled and shared by a block",
        rows,
        (f"{len(rows)} kernels; most registers: {most}; kernels that spill: {spilled}.",),
    )


def lowered(name: str, machine: Machine) -> Iterator[tuple[str, Lowered]]:
    """Kernels of a program as given, and of its best fused schedule without overlaps and with them."""
    given = program(name)
    widest = WORKLOADS[name][-1]
    known: set[object] = set()
    for which, schedule in schedules(given, widest, machine):
        groups = min(widest.groups, 2)
        extents = {dim: EXTENTS[dim] for dim in widest.extents}
        parts = {"N": sizes(extents["N"])} if name == "lamb" else {}
        made = lower(schedule, Bindings(extents, RANKS, groups, parts))
        if made.launches not in known:
            known.add(made.launches)
            yield which, made


def schedules(given: Program, bindings: Bindings, machine: Machine) -> Iterator[tuple[str, Program]]:
    yield "as given", given
    ranked = rank(search(given, useful(given)), bindings, machine)
    best = next(
        (of for of in ranked if any(stage.kind.startswith("fused ") for stage in stages(of.program))), ranked[0]
    )
    yield "fused", best.found.program
    if best.program.overlaps:
        yield "fused, overlapped", best.program
    elif other := next((of for of in ranked if of.program.overlaps), None):
        yield "overlapped", other.program


def sizes(extent: int) -> tuple[int, ...]:
    """Sizes of PARTS tensors."""
    return (extent - (PARTS - 1) * (extent // PARTS), *[extent // PARTS] * (PARTS - 1))


def _rows(name: str, which: str, made: Lowered) -> Iterator[Row]:
    progress(f"fusion.resources: {name}, {which}")
    found: dict[str, dict[str, Resources]] = {
        arch: {each.kernel: each for each in resources(made.text, arch)} for arch in ARCHITECTURES
    }
    for kernel in (kernel.name for launch in made.launches for kernel in launch):
        row: Row = {"program": name, "schedule": which, "kernel": kernel}
        for arch, by_name in found.items():
            each = by_name[kernel]
            row[f"{arch} registers"] = each.registers
            row[f"{arch} spilled"] = each.spill_stores + each.spill_loads
            row[f"{arch} shared"] = each.shared
        yield row
