"""Deals the non-zero units of a gradient out to parts: hierarchical hashing, or counting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from treadle.kernels.sparse.gpu import GpuKernels, HashMemory, gpu_kernels
from treadle.kernels.sparse.library import MAX_UNITS, PartitionCall, library, require, thread_count
from treadle.planner.errors import InputError

Method = Literal["hash", "count"]


class Partitioned(NamedTuple):
    """Distinct units int32 [N] grouped by part, in no order within one, and how many there are of each part."""

    indices: Tensor
    counts: tuple[int, ...]


class PartitionMemory:
    """The memory in which units are dealt out to `parts` parts; the part of a unit is h0(unit), by `seeds[0]`.

    By "hash", algorithm 3.2 of "Zen: Near-Optimal Sparse Tensor Synchronization for Distributed DNN Training": a part
    has `slots` words that functions of the other seeds choose, and `serial` words for units that find those taken. By
    "count", each thread lists its units, with room for as many as would half fill all slots. Where the memory
    does not suffice it grows, and the call starts again: no unit is dropped. On GPUs by "hash" only, with `kernels`,
    by default those of the GPUs.

    `retries` are the calls that started again, `grown` the words that were added. Not for several threads of Python at
    once. Raises InputError for sizes that cannot be.
    """

    def __init__(
        self,
        parts: int,
        slots: int,
        serial: int,
        seeds: Sequence[int],
        device: str = "cpu",
        threads: int | None = None,
        method: Method = "hash",
        kernels: GpuKernels | None = None,
    ) -> None:
        if min(parts, slots) < 1 or serial < 0 or len(seeds) < 2 or slots >= 2**32:
            raise InputError(
                f"found {parts} parts of {slots} slots and {serial} serial words, and {len(seeds)} seeds, expected at "
                "least 1 part, 1 slot and 2 seeds"
            )
        self.parts, self.method, self.retries = parts, method, 0
        self._device = torch.empty(0, device=device).device
        self._kernels = gpu_kernels() if kernels is None and self._device.type == "cuda" else kernels
        if self._kernels and method != "hash":
            raise InputError(f"found method {method} on {device}, expected hash")
        self._threads = thread_count(threads)
        self._seeds = torch.tensor([seed % 2**32 for seed in seeds], dtype=torch.int64).to(torch.uint32)
        if method == "count":
            slots, serial = -(-parts * slots // 2), 0
        self.slots, self.serial = slots, serial
        self._groups = self._threads if method == "count" else parts
        self._memory = self._words()
        self._first = self.words

    @property
    def words(self) -> int:
        """Words of the memory, of 4 bytes."""
        return self._groups * (self.slots + self.serial)

    @property
    def grown(self) -> int:
        return self.words - self._first

    def partition(self, indices: Tensor) -> Partitioned:
        """Deal out distinct units int32 [N]. Raises InputError for a negative one."""
        require(indices, torch.int32, 1, "indices", self._device)
        if self._kernels:
            kernels = self._kernels
            found = self._run_on_gpu(lambda memory: kernels.insert(memory, indices))
            if len(found.indices) < len(indices):
                raise InputError("found an index below 0, expected units from 0", where="sparse gradient")
            return found
        return self._run(PartitionCall(indices=indices.data_ptr(), count=len(indices), width=1))

    def collect(self, values: Tensor) -> Partitioned:
        """Find the rows of float32 [U, w] that are not zero, and deal them out, in one pass over it."""
        require(values, torch.float32, 2, "values", self._device)
        if len(values) > MAX_UNITS:
            raise InputError(f"found {len(values)} units, expected at most {MAX_UNITS}")
        if self._kernels:
            kernels = self._kernels
            return self._run_on_gpu(lambda memory: kernels.collect(memory, values))
        return self._run(PartitionCall(values=values.data_ptr(), count=len(values), width=values.shape[1]))

    @property
    def tensor(self) -> Tensor:
        """The memory, int32 [words]."""
        return self._memory

    def _words(self) -> Tensor:
        return torch.zeros(self.words, dtype=torch.int32, device=self._device)

    def _run(self, call: PartitionCall) -> Partitioned:
        counting = self.method == "count"
        taken = torch.empty(self._groups, dtype=torch.int64)
        counts = torch.empty(self.parts * (self._threads if counting else 1), dtype=torch.int64)
        call.taken, call.counts, call.seeds = taken.data_ptr(), counts.data_ptr(), self._seeds.data_ptr()
        call.parts, call.functions, call.threads = self.parts, len(self._seeds) - 1, self._threads
        call.counting = counting
        while True:
            call.memory, call.slots, call.serial = self._memory.data_ptr(), self.slots, self.serial
            library().call("insert", call)
            most = int(taken.max())
            if most <= (self.slots if counting else self.serial):
                break
            self._grow(most, int(counts.max()))
        by_part = counts.view(-1, self.parts).sum(0)
        out = torch.empty(int(by_part.sum()), dtype=torch.int32)
        call.out = out.data_ptr()
        library().call("extract", call)
        return Partitioned(out, tuple(by_part.tolist()))

    def _run_on_gpu(self, insert: Callable[[HashMemory], None]) -> Partitioned:
        """By `insert`, which fills the memory given."""
        assert self._kernels is not None
        seeds = tuple(self._seeds.tolist())
        while True:
            memory = HashMemory.of(self._memory, self.parts, self.slots, self.serial, seeds)
            insert(memory)
            found, counts, missing = self._kernels.extracted(memory)
            self._memory.zero_()
            if not any(missing):
                return Partitioned(found, tuple(counts))
            most = max(count + lost for count, lost in zip(counts, missing, strict=True))
            self._grow(self.serial + max(missing), most)

    def _grow(self, taken: int, most: int) -> None:
        """To the words `taken` by the fullest thread, or beyond slots in the fullest part, which has `most` units."""
        self.retries += 1
        if self.method == "count":
            self.slots = taken
        else:
            self.slots = max(self.slots, 2 * most)
            self.serial = max(2 * self.serial, taken)
        self._memory = self._words()
