"""Collectives of eight ranks against a copy of the same bytes, by `benchmarks.collective.gpu`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median

from benchmarks.collective import gpu
from benchmarks.gpu.items import Kernel, Outcome
from treadle.codegen.collective import check as check_program
from treadle.codegen.collective.program import CollectiveProgram


def kernels(dry: bool) -> Iterator[Kernel]:
    """The specialised kernels of all cases; `collective` has the interpreters. None in a dry run: `collective` has
    others of the same methods."""
    for collective, method in () if dry else gpu.CASES:
        for protocol in gpu.PROTOCOLS:
            program = gpu.program_of(collective, method, protocol)
            name = f"{collective} {method} {protocol} of {gpu.RANKS} ranks"
            yield Kernel(name, partial(_built, program))


def _built(program: CollectiveProgram, arch: str | None) -> object:
    from treadle.runtime.collective.native import build

    return build(program, "cuda", kernel="specialised", arch=arch)


def check(dry: bool) -> Outcome:
    """In a dry run the programs pass their check."""
    if dry:
        programs = [gpu.program_of(*case, protocol) for case in gpu.CASES for protocol in gpu.PROTOCOLS]
        assert not any(map(check_program.check, programs))
        return Outcome(f"{len(programs)} programs of {gpu.RANKS} ranks pass their check")
    (table,) = gpu.throughput()
    large = [row for row in table.rows if row["buffer MiB"] == gpu.SIZES[-1] >> 20]
    ratios = sorted(row["ratio"] for row in large)
    rivals = [row["NCCL over kernel"] for row in table.rows if "NCCL over kernel" in row]
    nccl = f"; NCCL over kernel {median(rivals):.2f}" if rivals else ""
    return Outcome(
        f"at {gpu.SIZES[-1] >> 20} MiB copy over kernel {ratios[0]:.2f} to {ratios[-1]:.2f}, "
        f"median {median(ratios):.2f}{nccl}",
        (table,),
    )
