"""The compiled kernels for GPUs, called through ctypes; the same text runs by fibers of a CPU, for tests.

Tensors are contiguous and on one device: indices int32, values and sums float32 [N, w], bitmaps int32. Calls queue
their work on the current stream; `extracted` and `decoded` wait for it once, as the host knows the sizes of tensors.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from treadle.codegen.collective.cuda.kernels import headers
from treadle.planner import resources
from treadle.planner.errors import InputError
from treadle.runtime.native_build import Target, compile_library

MAIN = "treadle_sparse.cu"
MAX_FUNCTIONS = 8
STEPS = ("insert", "collect", "mark", "count", "place", "gather", "add", "write")
"""By the numbers of treadle_sparse.cu."""


class _Memory(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("words", "taken")),
        *((name, ctypes.c_int32) for name in ("parts", "slots", "serial", "functions")),
        ("seeds", ctypes.c_uint32 * (1 + MAX_FUNCTIONS)),
    ]


class _Call(ctypes.Structure):
    _fields_ = [
        ("memory", _Memory),
        *((name, ctypes.c_int64) for name in ("count", "width", "chunks")),
        *((name, ctypes.c_void_p) for name in ("values", "indices", "table", "bitmap")),
        *((name, ctypes.c_void_p) for name in ("before", "offsets", "found", "out")),
        ("scale", ctypes.c_float),
        ("device", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
        ("order", ctypes.c_uint64),
    ]


@dataclass(frozen=True)
class HashMemory:
    """Memory of all parts on a device, empty at first. `words`, int32 [parts * (slots + serial)], holds units, counted
    from 1; `state`, int32 [2 * parts + 1], how many units of each part found no slot, then where the units of each part
    begin once they are extracted."""

    parts: int
    slots: int
    serial: int
    seeds: tuple[int, ...]
    words: Tensor
    state: Tensor

    @classmethod
    def empty(
        cls, parts: int, slots: int, serial: int, seeds: tuple[int, ...], device: torch.device | str
    ) -> HashMemory:
        """Raises InputError for sizes and seeds that the kernels do not take."""
        if min(parts, slots, serial + 1) < 1 or not 2 <= len(seeds) <= 1 + MAX_FUNCTIONS:
            raise InputError(
                f"found {parts} parts of {slots} + {serial} slots and {len(seeds)} seeds, "
                f"expected a part, a slot and 2 to {1 + MAX_FUNCTIONS} seeds"
            )
        words = torch.zeros(parts * (slots + serial), dtype=torch.int32, device=device)
        return cls(parts, slots, serial, seeds, words, torch.zeros(2 * parts + 1, dtype=torch.int32, device=device))

    def clear(self) -> None:
        self.words.zero_()
        self.state.zero_()


class GpuKernels:
    """The text compiled for GPUs (`cuda`), or for GPUs and run by fibers of a CPU, whose threads `order` interleaves.
    Raises MissingBackendError without the compiler."""

    def __init__(self, target: Target = "cuda", arch: str | None = None) -> None:
        self._library: Any = ctypes.CDLL(str(compile_library(texts(), MAIN, target, (), arch)))
        self._library.treadle_message.restype = ctypes.c_char_p
        self._library.treadle_chunk.restype = ctypes.c_int64
        self._chunk: int = self._library.treadle_chunk()
        self.order = 0

    def insert(self, memory: HashMemory, indices: Tensor) -> None:
        """Insert distinct `indices` [N] of units into the memory."""
        self._run("insert", memory.words.device, memory, count=len(indices), indices=indices)

    def collect(self, memory: HashMemory, values: Tensor) -> None:
        """Insert the rows of `values` [U, w] in which something is not zero."""
        self._run("collect", values.device, memory, count=len(values), width=values.shape[1], values=values)

    def extracted(self, memory: HashMemory) -> tuple[Tensor, list[int], list[int]]:
        """The units in the memory, part after part in the order of slots; how many each part has; and how many of each
        are missing, which were inserted and did not fit."""
        parts = memory.parts
        chunks = parts * -(-(memory.slots + memory.serial) // self._chunk)
        before = self._count(chunks, memory.words.device, memory.state[parts:], memory=memory)
        state = memory.state.tolist()
        taken, offsets = state[:parts], state[parts:]
        found = memory.words.new_empty(offsets[-1])
        self._run("place", found.device, memory, chunks=chunks, before=before, found=found)
        counts = [end - begin for begin, end in pairwise(offsets)]
        return found, counts, [max(0, each - memory.serial) for each in taken]

    def gather(self, values: Tensor, indices: Tensor) -> Tensor:
        """The rows of `values` [U, w] that `indices` [N] name."""
        out = values.new_empty(len(indices), values.shape[1])
        self._run("gather", values.device, count=len(out), width=out.shape[1], values=values, indices=indices, out=out)
        return out

    def add(self, sums: Tensor, ranks: Tensor, indices: Tensor, values: Tensor) -> None:
        """Add `values` [N, w] to the rows of `sums` [P, w] that `ranks` [U] has for distinct `indices` [N]. Calls run
        one after the other, so that those for workers in their order add up in it."""
        self._run(
            "add",
            sums.device,
            count=len(indices),
            width=values.shape[1],
            values=values,
            indices=indices,
            table=ranks,
            out=sums,
        )

    def marked(self, sums: Tensor) -> Tensor:
        """The bitmap, int32 [ceil(P / 32)], of the rows of `sums` [P, w] in which something is not zero."""
        bitmap = torch.empty(-(-len(sums) // 32), dtype=torch.int32, device=sums.device)
        self._run("mark", sums.device, count=len(sums), width=sums.shape[1], values=sums, bitmap=bitmap)
        return bitmap

    def decoded(self, bitmap: Tensor, size: int, units: Tensor | None = None) -> Tensor:
        """The places of ones in a bitmap of `size` bits, or what `units` [size] has there."""
        chunks = -(-size // self._chunk)
        offsets = torch.zeros(2, dtype=torch.int32, device=bitmap.device)
        before = self._count(chunks, bitmap.device, offsets, bitmap=bitmap, count=size)
        found = bitmap.new_empty(int(offsets[1]))
        self._run(
            "place",
            bitmap.device,
            chunks=chunks,
            before=before,
            bitmap=bitmap,
            count=size,
            table=units,
            found=found,
        )
        return found

    def write(self, out: Tensor, indices: Tensor, values: Tensor, scale: float) -> None:
        """Store `values` [N, w] times `scale` to the rows of `out` [U, w] that `indices` [N] name."""
        self._run(
            "write",
            out.device,
            count=len(indices),
            width=values.shape[1],
            values=values,
            indices=indices,
            out=out,
            scale=scale,
        )

    def _count(self, chunks: int, device: torch.device, offsets: Tensor, **arguments: Any) -> Tensor:
        before = torch.empty(chunks, dtype=torch.int32, device=device)
        self._run("count", device, chunks=chunks, before=before, offsets=offsets, **arguments)
        return before

    def _run(self, step: str, device: torch.device, memory: HashMemory | None = None, **arguments: Any) -> None:
        if not arguments.get("count", 1) or not arguments.get("chunks", 1):
            return
        call = _Call(
            device=device.index or 0,
            order=self.order,
            **{name: each.data_ptr() if isinstance(each, Tensor) else each for name, each in arguments.items()},
        )
        if memory is not None:
            call.memory = _Memory(
                *(memory.words.data_ptr(), memory.state.data_ptr(), memory.parts, memory.slots, memory.serial),
                *(len(memory.seeds) - 1, (ctypes.c_uint32 * (1 + MAX_FUNCTIONS))(*memory.seeds)),
            )
        if device.type == "cuda":
            call.stream = torch.cuda.current_stream(device).cuda_stream
        if self._library.treadle_sparse(ctypes.byref(call), STEPS.index(step)):
            raise InputError(self._library.treadle_message().decode(), where="sparse")


@cache
def gpu_kernels() -> GpuKernels:
    """The kernels for the GPUs of this machine, compiled at the first call."""
    return GpuKernels()


def texts() -> dict[str, str]:
    """Every text that the kernels are compiled from, by file name."""
    folder = resources.folder("templates") / "sparse"
    own = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.iterdir())}
    return {**{name: text for name, text in headers().items() if name.endswith(".h")}, **own}
