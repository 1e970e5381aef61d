"""Compressors of gradients: payloads and sums of the kernels for GPUs, bit by bit those of the encoders for CPUs.

In a dry run the kernels are fibers of this process.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.common import Row, Table, gpu_milliseconds
from benchmarks.gpu.items import Kernel, Outcome
from treadle.kernels.compression.library import ALGORITHMS, CompressionLibrary
from treadle.planner.errors import CheckFailed
from treadle.planner.machine.compressors import Compressor, compressor

SIZES, DRY_SIZES = (1, 513, 40_001, 4 << 20), (1, 513, 20_001)
PIECES = 3
REPEATS = 10


def kernels(dry: bool) -> Iterator[Kernel]:
    yield Kernel("compression", lambda arch: CompressionLibrary("cuda", arch), True)


def check(dry: bool) -> Outcome:
    """Raises CheckFailed naming each compressor and size whose bits differ."""
    here, there = CompressionLibrary("process"), CompressionLibrary("fibers" if dry else "cuda")
    found = [compressor(name) for name in ALGORITHMS]
    sizes = DRY_SIZES if dry else SIZES
    cases = [(each, size) for each in found for size in sizes]
    wrong = [
        f"{each.name} of {size} elements: {where} differs"
        for each, size in cases
        for where in differences(each, size, here, there, "cpu" if dry else "cuda")
    ]
    if wrong:
        raise CheckFailed(f"{len(wrong)} of {len(cases)} cases differ: {wrong[0]}", tuple(wrong))
    rows = [] if dry else [timed(each, there) for each in found]
    return Outcome(
        f"{len(cases)} cases have the bits of the CPU",
        (Table("Compressors, 16 MiB of gradients", rows),) if rows else (),
    )


def differences(
    found: Compressor, size: int, here: CompressionLibrary, there: CompressionLibrary, device: str
) -> list[str]:
    """Which of payload, residual and sum differ between two libraries."""
    generator = torch.Generator().manual_seed(size)
    values, before, out = (torch.randn(size, generator=generator) for _ in range(3))
    results = []
    for library, place in ((here, "cpu"), (there, device)):
        residual, total = before.clone().to(place), out.clone().to(place)
        payload = torch.empty(found.wire_bytes(size), dtype=torch.uint8, device=place)
        library.encode(found, values.to(place), payload, residual, seed=size)
        library.decode(found, payload.repeat(PIECES), total, seed=size, pieces=PIECES)
        results.append([each.cpu() for each in (payload, residual, total)])
    names = ("payload", "residual", "sum")
    return [name for name, one, other in zip(names, *results, strict=True) if not torch.equal(one, other)]


def timed(found: Compressor, library: CompressionLibrary) -> Row:
    """Times of encoding with a residual and of adding one payload, and of a copy of the gradient."""
    values = torch.randn(SIZES[-1], device="cuda")
    residual, out = torch.zeros_like(values), torch.zeros_like(values)
    payload = torch.empty(found.wire_bytes(SIZES[-1]), dtype=torch.uint8, device="cuda")
    return {
        "compressor": found.name,
        "bytes": len(payload),
        "encode ms": gpu_milliseconds(lambda: library.encode(found, values, payload, residual, seed=1), REPEATS),
        "decode ms": gpu_milliseconds(lambda: library.decode(found, payload, out, seed=1), REPEATS),
        "copy ms": gpu_milliseconds(lambda: out.copy_(values), REPEATS),
    }
