"""The compiled kernels for GPUs, called through ctypes; the same text runs by fibers of a CPU, for tests.

Tensors are contiguous and on one device: indices int32, values and sums float32 [N, w], bitmaps int32. Calls queue
their work on the current stream; `extracted` and `decoded` wait for it once, as the host knows the sizes of tensors.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from treadle.kernels.sparse.library import OwnedCall
from treadle.kernels.sparse.owned import OwnedPart
from treadle.planner.errors import InputError
from treadle.runtime.kernel_texts import texts
from treadle.runtime.native_build import Target, compile_library

MAIN = "treadle_sparse.cu"
MAX_FUNCTIONS = 8
STEPS = ("insert", "collect", "count", "place", "gather", "add", "sum", "write")
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
        ("owned", OwnedCall),
        *((name, ctypes.c_int64) for name in ("count", "width", "units", "chunks")),
        *((name, ctypes.c_void_p) for name in ("values", "indices", "ends", "bitmap")),
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
    def of(cls, words: Tensor, parts: int, slots: int, serial: int, seeds: tuple[int, ...]) -> HashMemory:
        """A memory over zero `words`. Raises InputError for sizes and seeds that the kernels do not take."""
        if not 2 <= len(seeds) <= 1 + MAX_FUNCTIONS or max(slots, serial) >= 2**31:
            raise InputError(
                f"found {slots} slots, {serial} serial words and {len(seeds)} seeds, expected fewer than 2147483648 of "
                f"each and 2 to {1 + MAX_FUNCTIONS} seeds"
            )
        return cls(parts, slots, serial, seeds, words, words.new_zeros(2 * parts + 1))

    def call(self) -> _Memory:
        """The memory as the kernels take it."""
        return _Memory(
            *(self.words.data_ptr(), self.state.data_ptr(), self.parts, self.slots, self.serial),
            *(len(self.seeds) - 1, (ctypes.c_uint32 * (1 + MAX_FUNCTIONS))(*self.seeds)),
        )


class GpuKernels:
    """The text compiled for GPUs (`cuda`), or for GPUs and run by fibers of a CPU, whose threads `order` interleaves.
    Raises MissingBackendError without the compiler."""

    def __init__(self, target: Target = "cuda", arch: str | None = None) -> None:
        self._library: Any = ctypes.CDLL(str(compile_library(texts("sparse"), MAIN, target, (), arch)))
        self._library.treadle_message.restype = ctypes.c_char_p
        self._library.treadle_chunk.restype = ctypes.c_int64
        self._chunk: int = self._library.treadle_chunk()
        self.order = 0

    def insert(self, memory: HashMemory, indices: Tensor) -> None:
        """Insert distinct `indices` [N] of units into the memory."""
        self._run("insert", indices.device, memory=memory.call(), count=len(indices), indices=indices)

    def collect(self, memory: HashMemory, values: Tensor) -> None:
        """Insert the rows of `values` [U, w] in which something is not zero."""
        count, width = values.shape
        self._run("collect", values.device, memory=memory.call(), count=count, width=width, values=values)

    def extracted(self, memory: HashMemory) -> tuple[Tensor, list[int], list[int]]:
        """The units in the memory, part after part in the order of slots; how many each part has; and how many of each
        are missing, which were inserted and did not fit."""
        parts = memory.parts
        chunks = parts * -(-(memory.slots + memory.serial) // self._chunk)
        before = self._count(chunks, memory.state[parts:], memory=memory.call())
        state = memory.state.tolist()
        taken, offsets = state[:parts], state[parts:]
        found = memory.words.new_empty(offsets[-1])
        self._run("place", found.device, memory=memory.call(), chunks=chunks, before=before, found=found)
        return found, [end - begin for begin, end in pairwise(offsets)], [max(0, n - memory.serial) for n in taken]

    def gather(self, values: Tensor, indices: Tensor) -> Tensor:
        """The rows of `values` [U, w] that `indices` [N] name, NaN where that is none."""
        units, width = values.shape
        out = values.new_empty(len(indices), width)
        self._run("gather", values.device, **_rows(len(out), width, units, values=values, indices=indices, out=out))
        return out

    def add(
        self, sums: Tensor, bitmap: Tensor, state: Tensor, part: OwnedPart, indices: Tensor, values: Tensor
    ) -> None:
        """Add `values` [N, w] to `sums` [P, w], a row for each unit of a part, at distinct `indices` [N], and set their
        bits; count those of other parts in state[2]. Calls run one after the other, so that those for workers in their
        order add up in it."""
        rows = _rows(len(indices), values.shape[1], part.units, values=values, indices=indices, out=sums)
        self._run("add", sums.device, owned=part.call(), bitmap=bitmap, offsets=state, **rows)

    def decoded(self, bitmap: Tensor, part: OwnedPart, state: Tensor, *, ranks: bool = False) -> Tensor:
        """The units of a part, or their `ranks` in it, whose bits are set, ascending. `state`, int32 [3], is zero at
        first. Raises InputError where something was counted in state[2], and for ones beyond the part."""
        owned = replace(part, listed=None, rank=None, first=0) if ranks else part
        chunks = -(-part.count // self._chunk)
        before = self._count(chunks, state, bitmap=bitmap, owned=owned.call())
        _, ones, wrong = state.tolist()
        if wrong:
            raise InputError(f"found units that are none of part {part.part}", where="sparse gradient")
        found = bitmap.new_empty(ones)
        self._run("place", bitmap.device, owned=owned.call(), chunks=chunks, before=before, bitmap=bitmap, found=found)
        return found

    def summed(self, values: Tensor, places: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
        """Row i of [N, w] is the sum of those of `values` [K, w] that `places` [K] names from begins[i] to ends[i], in
        this order."""
        out = values.new_empty(len(begins), values.shape[1])
        rows = _rows(len(out), values.shape[1], len(values), values=values, indices=begins, out=out)
        self._run("sum", values.device, ends=ends, found=places, **rows)
        return out

    def write(self, out: Tensor, indices: Tensor, values: Tensor, scale: float) -> None:
        """Store `values` [N, w] times `scale` to the rows of `out` [U, w] that `indices` [N] name, if any."""
        rows = _rows(len(indices), values.shape[1], len(out), values=values, indices=indices, out=out)
        self._run("write", out.device, scale=scale, **rows)

    def _count(self, chunks: int, offsets: Tensor, **arguments: Any) -> Tensor:
        before = offsets.new_empty(chunks)
        self._run("count", offsets.device, chunks=chunks, before=before, offsets=offsets, **arguments)
        return before

    def _run(self, step: str, device: torch.device, **arguments: Any) -> None:
        if not arguments.get("count", 1) or not arguments.get("chunks", 1):
            return
        call = _Call(
            device=device.index or 0,
            order=self.order,
            **{name: each.data_ptr() if isinstance(each, Tensor) else each for name, each in arguments.items()},
        )
        if device.type == "cuda":
            call.stream = torch.cuda.current_stream(device).cuda_stream
        if self._library.treadle_sparse(ctypes.byref(call), STEPS.index(step)):
            raise InputError(self._library.treadle_message().decode(), where="sparse gradient")


def _rows(count: int, width: int, units: int, *, values: Tensor, indices: Tensor, out: Tensor) -> dict[str, Any]:
    return {"count": count, "width": width, "units": units, "values": values, "indices": indices, "out": out}


@cache
def gpu_kernels() -> GpuKernels:
    """The kernels for the GPUs of this machine, compiled at the first call. Raises MissingBackendError without nvcc."""
    return GpuKernels()
