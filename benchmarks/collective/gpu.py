"""Compiled collective kernels on a GPU: registers, and throughput against a copy of the same bytes.

One GPU executes all ranks. The kernel writes every message into a slot and reads it from there; the copy that it is
compared with moves as many bytes as all messages together. With a GPU for each rank, NCCL's allreduce is measured too.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.collective.machines import EVERY_LINK
from benchmarks.common import Row, Table, gpu_milliseconds, progress, without_gpu
from treadle.codegen.collective.cuda import kernels
from treadle.codegen.collective.lower import lower
from treadle.codegen.collective.program import SENDING, CollectiveProgram
from treadle.planner.documents.collective import Collective, Protocol
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.decisions import decisions_of
from treadle.planner.passes.collective.limits import Effort
from treadle.planner.passes.collective.planning import make_request, synthesize
from treadle.planner.passes.collective.synthesis import Request
from treadle.probe.resolve import load_hardware

CASES: tuple[tuple[Collective, str], ...] = (
    ("allgather", "ring"),
    ("allgather", "all-pairs"),
    ("allreduce", "ring"),
    ("allreduce", "all-pairs"),
    ("alltoall", "all-pairs"),
)
PROTOCOLS: tuple[Protocol, ...] = ("Simple", "LL", "LL128")
SIZES = (1 << 20, 1 << 24, 1 << 27)
"""Larger buffer of a rank, bytes."""
RANKS, INSTANCES, REPEATS = 8, 4, 20


def tables() -> Iterator[Table]:
    """Registers of the interpreter kernel; its throughput on a GPU against a copy of the same bytes, and NCCL."""
    if shutil.which("nvcc") is None:
        yield Table("registers", [], ("no nvcc",))
    else:
        yield Table("interpreter kernel: registers, spilled bytes", list(_registers()))
    yield from throughput()


def _registers() -> Iterator[Row]:
    for protocol in PROTOCOLS:
        for reduces in (False, True):
            row: Row = {"protocol": protocol, "program": "with sums" if reduces else "moves data"}
            for arch in ("sm_80", "sm_90"):
                progress(f"nvcc {arch}, {protocol}")
                text = _compile(protocol, reduces, arch)
                row[f"{arch} registers"] = max(map(int, re.findall(r"Used (\d+) registers", text)))
                row[f"{arch} spilled"] = sum(map(int, re.findall(r"(\d+) bytes spill", text)))
            yield row


def _compile(protocol: str, reduces: bool, arch: str) -> str:
    """The report of ptxas."""
    flags = kernels.definitions("interpreter", protocol, reduces)
    with tempfile.TemporaryDirectory() as name:
        for file, text in kernels.headers().items():
            (Path(name) / file).write_text(text)
        call = ["nvcc", "-std=c++17", "-O3", "-cubin", f"-arch={arch}", "-Xptxas=-v", *flags, kernels.INTERPRETER]
        done = subprocess.run([*call, "-o", "out"], cwd=name, capture_output=True, text=True, check=True)
    return done.stderr


def throughput() -> Iterator[Table]:
    if absent := list(without_gpu("throughput on a GPU")):
        yield from absent
        return
    import torch

    rows = [row for collective, method in CASES for row in _case(collective, method)]
    name, count = torch.cuda.get_device_name(0), torch.cuda.device_count()
    yield Table(
        f"{RANKS} ranks on {name if count < RANKS else f'{RANKS} x {name}'}, fp32",
        rows,
        ("ratio: time of a device-to-device copy of all messages over the kernel's; above 1 the kernel is faster",),
    )


def program_of(collective: Collective, method: str, protocol: Protocol) -> CollectiveProgram:
    """The program of a case: eight GPUs on one switch."""
    request = make_request(collective, load_hardware("ndv4"), EVERY_LINK, SIZES[-1])
    return replace(lower(without_bound(request, method, INSTANCES)), protocol=protocol)


def without_bound(request: Request, method: str, instances: int = 1) -> CollectiveDecisions:
    """What a method decides, without the bound of a plan, which needs a solver."""
    return decisions_of(synthesize(method, request, Effort()), instances, "Simple")


def _case(collective: Collective, method: str) -> Iterator[Row]:
    from treadle.runtime.collective.native import build

    for protocol in PROTOCOLS:
        program = program_of(collective, method, protocol)
        for kernel in ("interpreter", "specialised"):
            progress(f"{collective} {method} {protocol} {kernel}")
            library = build(program, "cuda", kernel=kernel)
            for size in SIZES if protocol == "Simple" else SIZES[:2]:
                row: Row = {"collective": collective, "method": method, "protocol": protocol, "kernel": kernel}
                yield {**row, **_measured(library, size)}
            library.close()


def _measured(library: Any, size: int) -> Row:
    import torch

    program = library.program
    spread = torch.cuda.device_count() >= RANKS
    count = size // 4 // (RANKS if program.collective == "allgather" else 1)
    inputs = [torch.randn(count, device=f"cuda:{rank if spread else 0}") for rank in range(RANKS)]
    ours = gpu_milliseconds(lambda: library.run(inputs, wait=False), REPEATS)
    library.run(inputs)
    moved = message_bytes(program, size)
    source = torch.empty(moved // (RANKS if spread else 1), dtype=torch.uint8, device="cuda:0")
    target = torch.empty_like(source)
    copy = gpu_milliseconds(lambda: target.copy_(source), REPEATS)
    row: Row = {
        "buffer MiB": size >> 20,
        "messages MiB": round(moved / 2**20),
        "kernel ms": ours,
        "copy ms": copy,
        "ratio": copy / ours,
    }
    if spread and program.collective == "allreduce":
        nccl = gpu_milliseconds(lambda: torch.cuda.nccl.all_reduce(inputs), REPEATS)
        row |= {"NCCL ms": nccl, "NCCL over kernel": nccl / ours}
    return row


def message_bytes(program: CollectiveProgram, size: int) -> int:
    """Payload of all messages of all ranks, bytes, when the larger buffer of a rank has `size` bytes."""
    chunks = max(max(rank.input_chunks, rank.output_chunks) for rank in program.ranks)
    return sum(step.count for _, _, step in program.steps() if step.type in SENDING) * size // chunks
