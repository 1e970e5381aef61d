"""Sparse gradients: parts, sums and bitmaps of the kernels for GPUs, compared with PyTorch; times against a copy.

In a dry run the kernels are fibers of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import Row, Table, gpu_milliseconds
from benchmarks.gpu.items import Kernel, Outcome
from treadle.kernels.sparse.gpu import GpuKernels, HashMemory
from treadle.planner.errors import CheckFailed
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS, ranged

CASES = ((1, 1), (1000, 1), (1000, 3), (1 << 20, 1), (1 << 16, 64), (50_000, 17))
DRY_CASES = ((1, 1), (1000, 1), (300, 17))
WORKERS = PARTS = 3
DENSITY = 0.05
COLLISIONS, DRY_COLLISIONS = 100_000, 300
TIMED = ((1 << 26, 1), (1 << 20, 64))
TIMED_DENSITY = 0.02
REPEATS = 10


def kernels(dry: bool) -> Iterator[Kernel]:
    yield Kernel("sparse", lambda arch: GpuKernels("cuda", arch), True)


def check(dry: bool) -> Outcome:
    """Raises CheckFailed naming each case that differs from PyTorch or loses a unit."""
    made, device = GpuKernels("fibers" if dry else "cuda"), "cpu" if dry else "cuda"
    cases = DRY_CASES if dry else CASES
    wrong = [f"{case[0]} x {case[1]}: {where}" for case in cases for where in differences(made, *case, device)]
    wrong += lost(made, DRY_COLLISIONS if dry else COLLISIONS, device)
    if wrong:
        raise CheckFailed(f"{len(wrong)} findings in {len(cases)} cases: {wrong[0]}", tuple(wrong))
    rows = [] if dry else [row for units, width in TIMED for row in timed(made, units, width)]
    return Outcome(
        f"{len(cases)} exchanges of {WORKERS} workers have the sums of PyTorch, and crowded memory loses nothing",
        (Table(f"Sparse gradients, 256 MiB, {TIMED_DENSITY:.0%} of rows not zero", rows),) if rows else (),
    )


def differences(made: GpuKernels, units: int, width: int, device: str) -> list[str]:
    """What of an exchange between workers differs: sets of parts, sums in their order, bitmaps, the gradient."""
    generator = torch.Generator().manual_seed(units + width)
    gradients = [gradient(units, width, DENSITY, generator).to(device) for _ in range(WORKERS)]
    owners = owners_of(units, PARTS, device)
    tables = [(owners == part).nonzero().flatten().to(torch.int32) for part in range(PARTS)]
    ranks = torch.empty(units, dtype=torch.int32, device=device)
    for table in tables:
        ranks[table.long()] = torch.arange(len(table), dtype=torch.int32, device=device)
    sums = [torch.zeros(len(table), width, device=device) for table in tables]
    findings = []
    for worker, values in enumerate(gradients):
        memory = HashMemory.empty(PARTS, units, units, DEFAULT_SEEDS, device)
        made.collect(memory, values)
        found, counts, _ = made.extracted(memory)
        for part, indices in enumerate(found.split(counts)):
            want = ((values != 0).any(1) & (owners == part)).nonzero().flatten()
            if not torch.equal(indices.long().sort().values, want):
                findings.append(f"part {part} of worker {worker}")
            made.add(sums[part], ranks, indices, made.gather(values, indices))
    out, total = torch.zeros(units, width, device=device), torch.zeros(units, width, device=device)
    for values in gradients:
        total += values
    for part, (own, table) in enumerate(zip(sums, tables, strict=True)):
        if not torch.equal(own, total[table.long()]):
            findings.append(f"sums of part {part}")
        bitmap = made.marked(own)
        places, indices = made.decoded(bitmap, len(table)), made.decoded(bitmap, len(table), table)
        if not torch.equal(indices, table[(own != 0).any(1)]):
            findings.append(f"bitmap of part {part}")
        made.write(out, indices, made.gather(own, places), 1 / 4)
    return findings if torch.equal(out, total / 4) else [*findings, "the gradient written"]


def lost(made: GpuKernels, units: int, device: str) -> list[str]:
    """Memory for half of the units, in few slots: what was not placed is counted, and nothing is there twice."""
    indices = torch.arange(units, dtype=torch.int32, device=device)
    memory = HashMemory.empty(1, max(1, units // 8), units // 2, DEFAULT_SEEDS, device)
    made.insert(memory, indices)
    found, _, missing = made.extracted(memory)
    whole = len(found) + missing[0] == units and len(found.unique()) == len(found) and missing[0] > 0
    return [] if whole else [f"{units} units in crowded memory: {len(found)} placed, {missing[0]} counted"]


def timed(made: GpuKernels, units: int, width: int) -> Iterator[Row]:
    """Times of the kernels and of what PyTorch has for the same, and of a copy of the gradient."""
    values = gradient(units, width, TIMED_DENSITY, torch.Generator().manual_seed(0)).cuda()
    owners = owners_of(units, PARTS, "cuda")
    slots = int(2 * TIMED_DENSITY * units / PARTS)
    memory = HashMemory.empty(PARTS, slots, slots // 10, DEFAULT_SEEDS, "cuda")
    ranks = torch.arange(units, dtype=torch.int32, device="cuda")
    out = torch.zeros_like(values)

    def collected() -> Tensor:
        memory.clear()
        made.collect(memory, values)
        return made.extracted(memory)[0]

    def nonzero() -> Tensor:
        return (values != 0).any(1).nonzero().flatten()

    def by_sort() -> Tensor:
        found = nonzero()
        return found[owners[found].sort().indices]

    indices = collected()
    shuffled, rows, bitmap = indices.long(), made.gather(values, indices), made.marked(values)
    works: dict[str, Callable[[], Any]] = {
        "collect by part": collected,
        "PyTorch: nonzero": nonzero,
        "PyTorch: nonzero, sorted by part": by_sort,
        "PyTorch: unique of the units": shuffled.unique,
        "gather": lambda: made.gather(values, indices),
        "add": lambda: made.add(out, ranks, indices, rows),
        "PyTorch: index_add": lambda: out.index_add_(0, shuffled, rows),
        "bitmap": lambda: made.marked(values),
        "units of a bitmap": lambda: made.decoded(bitmap, units),
        "write": lambda: made.write(out.zero_(), indices, rows, 0.5),
        "copy of the gradient": lambda: out.copy_(values),
    }
    for name, work in works.items():
        yield {"width": width, "what": name, "ms": gpu_milliseconds(work, REPEATS)}


def gradient(units: int, width: int, density: float, generator: torch.Generator) -> Tensor:
    values = torch.randn(units, width, generator=generator)
    values[torch.rand(units, generator=generator) >= density] = 0
    return values


def owners_of(units: int, parts: int, device: str) -> Tensor:
    return torch.from_numpy(ranged(np.arange(units), DEFAULT_SEEDS[0], parts)).to(device)
