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
from treadle.kernels.sparse import PartitionMemory, aggregate, decode, gather, gpu_sums, owned, ranges
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
    total = torch.zeros_like(gradients[0])
    for values in gradients:
        total += values
    memory = PartitionMemory(PARTS, units // 10 + 1, 1, DEFAULT_SEEDS, device, kernels=made)
    sent = [(values, memory.collect(values)) for values in gradients]
    out, findings = torch.zeros_like(total), []
    for part in owned(units, PARTS, DEFAULT_SEEDS[0]).to(device).parts:
        contributions = []
        for worker, (values, found) in enumerate(sent):
            indices = found.indices.split(found.counts)[part.part]
            if not torch.equal(indices.sort().values, part.indices[filled(values)[part.indices.long()]]):
                findings.append(f"part {part.part} of worker {worker}")
            contributions.append((indices, made.gather(values, indices)))
        bitmap, sums = gpu_sums.aggregate(made, contributions, part)
        indices = gpu_sums.decode(made, bitmap, part)
        if not torch.equal(
            indices, part.indices[torch.stack([filled(each) for each in gradients]).any(0)[part.indices.long()]]
        ):
            findings.append(f"bitmap of part {part.part}")
        made.write(out, indices, sums, 1 / 4)
        public = (*aggregate(contributions, part), decode(bitmap, part), gather(out, indices))
        if not all(map(torch.equal, public, (bitmap, sums, indices, sums / 4))):
            findings.append(f"functions by device, part {part.part}")
    return findings if torch.equal(out, total / 4) else [*findings, "the sums in the order of workers"]


def lost(made: GpuKernels, units: int, device: str) -> list[str]:
    """Memory for half of the units, in few slots: what was not placed is counted, and nothing is there twice."""
    slots, serial = max(1, units // 8), units // 2
    words = torch.zeros(slots + serial, dtype=torch.int32, device=device)
    memory = HashMemory.of(words, 1, slots, serial, DEFAULT_SEEDS)
    made.insert(memory, torch.arange(units, dtype=torch.int32, device=device))
    found, _, missing = made.extracted(memory)
    whole = len(found) + missing[0] == units and len(found.unique()) == len(found) and missing[0] > 0
    return [] if whole else [f"{units} units in crowded memory: {len(found)} placed, {missing[0]} counted"]


def timed(made: GpuKernels, units: int, width: int) -> Iterator[Row]:
    """Times of the kernels and of what PyTorch has for the same, and of a copy of the gradient."""
    values = gradient(units, width, TIMED_DENSITY, torch.Generator().manual_seed(0)).cuda()
    slots = int(2 * TIMED_DENSITY * units / PARTS)
    memory = PartitionMemory(PARTS, slots, slots // 10, DEFAULT_SEEDS, "cuda", kernels=made)
    owners = torch.from_numpy(ranged(np.arange(units), DEFAULT_SEEDS[0], PARTS)).cuda()
    whole = ranges(units, 1)[0]
    out = torch.zeros_like(values)

    def by_sort() -> Tensor:
        found = filled(values).nonzero().flatten()
        return found[owners[found].sort().indices]

    indices = memory.collect(values).indices
    rows, shuffled = made.gather(values, indices), indices.long()
    bitmap, _ = gpu_sums.aggregate(made, [(indices, rows)], whole)
    works: dict[str, Callable[[], Any]] = {
        "collect by part": lambda: memory.collect(values),
        "PyTorch: nonzero": lambda: filled(values).nonzero(),
        "PyTorch: nonzero, sorted by part": by_sort,
        "gather": lambda: made.gather(values, indices),
        "add up one worker": lambda: gpu_sums.aggregate(made, [(indices, rows)], whole),
        "add up twice as many entries": lambda: gpu_sums.coalesce(made, shuffled.repeat(2), rows.repeat(2, 1), units),
        "PyTorch: unique of those entries": shuffled.repeat(2).unique,
        "units of a bitmap": lambda: gpu_sums.decode(made, bitmap, whole),
        "write": lambda: made.write(out.zero_(), indices, rows, 0.5),
        "copy of the gradient": lambda: out.copy_(values),
    }
    for name, work in works.items():
        yield {"width": width, "what": name, "ms": gpu_milliseconds(work, REPEATS)}


def filled(values: Tensor) -> Tensor:
    return (values != 0).any(1)


def gradient(units: int, width: int, density: float, generator: torch.Generator) -> Tensor:
    values = torch.randn(units, width, generator=generator)
    values[torch.rand(units, generator=generator) >= density] = 0
    return values
