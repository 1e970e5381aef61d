"""Fused schedules on a GPU, compared with the unfused ones and with the floor that memory sets.

One GPU executes all ranks, so links are its own memory. The floor is the time of a copy of as many bytes as the ranks
together load from and store to their tensors, and to and from the slots of their messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.common import Row, Table, gpu_milliseconds, progress, without_gpu
from benchmarks.fusion.schedules import optimizer, program, tail
from treadle.codegen.fusion.lower import lower
from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import BYTES
from treadle.planner.passes.fusion.candidates import AllowedTransforms
from treadle.planner.passes.fusion.enumerate import enumerate_schedules
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.planner.passes.fusion.prune import pointwise_first
from treadle.planner.passes.fusion.stages import stages
from treadle.runtime.fusion import cuda, fibers
from treadle.runtime.fusion.build import build
from treadle.runtime.fusion.compare import compare
from treadle.runtime.fusion.data import fill
from treadle.runtime.fusion.runs import Runs
from treadle.runtime.fusion.session import FusionSession
from treadle.runtime.fusion.tensors import Tensors

RANKS, CHANNELS, REPEATS = 4, 8, 20
SHRUNK = 1024
"""Factor by which sizes are smaller when bytes are counted on fibers."""


@dataclass(frozen=True)
class Case:
    """Schedules by name, all compared with the first. All work is proportional to dimension `grows`, which has the
    extents `sizes`; `wire` is the size of an element that is sent, bytes."""

    name: str
    schedules: Mapping[str, Program]
    extents: Mapping[str, int]
    grows: str
    sizes: tuple[int, ...]
    wire: int = BYTES["f16"]

    def bindings(self, size: int) -> Bindings:
        return Bindings({**self.extents, self.grows: size}, RANKS)


def cases() -> tuple[Case, ...]:
    return (
        Case("adam", optimizer("adam"), {}, "N", (1 << 20, 1 << 24)),
        Case("rmsnorm", rows(), {"H": 4096}, "T", (1024, 8192)),
        Case("attention", tail("attention"), {"B": 1, "H": 4096}, "S", (1024, 4096)),
    )


def rows() -> dict[str, Program]:
    """RS+RMSNorm+AG: every schedule with the residual in slices or whole, named by its launches."""
    start, _ = pointwise_first(program("rmsnorm"))
    found = enumerate_schedules(start, AllowedTransforms(as_slice=True, dims=(0,))).schedules
    return {" ".join(stage.kind for stage in stages(each.program)): each.program for each in found}


def tables() -> Iterator[Table]:
    """Fused schedules of ranks on one GPU, compared with unfused ones and with a copy of the same bytes."""
    if absent := list(without_gpu("fused schedules on a GPU")):
        yield from absent
        return
    import torch

    for case in cases():
        yield Table(
            f"{case.name}: {RANKS} ranks on {torch.cuda.get_device_name(0)}",
            [row for size in case.sizes for row in measured(case, size)],
            (
                f"ratio: time of {next(iter(case.schedules))} over this one's; above 1 is faster",
                "floor: a device-to-device copy of as many bytes as tensors and slots are read and written,"
                " without those of products",
            ),
        )


def measured(case: Case, size: int) -> Iterator[Row]:
    first = 0.0
    for name, schedule in case.schedules.items():
        progress(f"{case.name} {size} {name}")
        row: Row = {"schedule": name, case.grows: size}
        try:
            ours = milliseconds(schedule, case.bindings(size))
        except InputError as error:
            yield {**row, "refused": str(error)}
            continue
        first = first or ours
        least = copy_milliseconds(moved_bytes(case, schedule, size))
        yield {
            **row,
            "right": right(schedule, case.bindings(max(RANKS, size // SHRUNK))),
            "launches": len(stages(schedule)),
            "ms": ours,
            "ratio": first / ours,
            "floor ms": least,
            "of floor": least / ours,
        }


def milliseconds(schedule: Program, bindings: Bindings) -> float:
    lowered = lower(schedule, bindings, channels=CHANNELS)
    compiled = build(lowered, "cuda")
    devices = cuda.devices_of(compiled)
    host = Tensors(lowered.buffers, compiled.ranks)
    fill(host, range(compiled.ranks), lowered)
    copies = {rank: cuda.upload(host, rank, device) for rank, device in devices.items()}
    session = FusionSession(compiled.path, compiled.ranks, devices)
    try:
        session.bind({rank: cuda.addresses(host, copy) for rank, copy in copies.items()}, keep=copies)
        time = gpu_milliseconds(lambda: session.run(timeout=60, streams=cuda.streams_of(devices)), REPEATS)
        session.wait()
    finally:
        session.close()
    return time


def right(schedule: Program, bindings: Bindings) -> bool:
    """Whether the GPU computes what the interpreter does, at a size that the interpreter can run."""
    lowered = lower(schedule, bindings, channels=CHANNELS)
    return compare(build(lowered, "cuda"), lowered, Runs(repeats=3), kind="floats").good


def moved_bytes(case: Case, schedule: Program, size: int) -> int:
    """Bytes of all ranks: of tensors, counted at a smaller size, and of messages, which are written and read."""
    small = max(RANKS, size // SHRUNK)
    lowered = lower(schedule, case.bindings(small), channels=CHANNELS)
    compiled = build(lowered, counts=True, quickly=True)
    host = Tensors(lowered.buffers, compiled.ranks)
    fill(host, range(compiled.ranks), lowered)
    counted = fibers.run(compiled, host).counted
    return sum(each.loaded_bytes + each.stored_bytes + 2 * case.wire * each.sent for each in counted) * size // small


def copy_milliseconds(moved: int) -> float:
    """Time of a copy that reads half of the bytes and writes the other half, ms."""
    import torch

    source = torch.empty(max(1, moved // 2), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return gpu_milliseconds(lambda: target.copy_(source), REPEATS)
