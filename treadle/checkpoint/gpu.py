"""Keeps the state of a rank on a GPU in the memory of machines: pieces travel from GPU to GPU by NCCL, and from
there into memory of the agent on each host.

Nothing waits on the host between `begin` and the update: a thread of its own waits until a version has arrived, has the
agent count its sums, compares them with the owner's, and commits it. The next `begin` waits for that thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import distributed

from treadle.checkpoint.connected import RankMemory
from treadle.checkpoint.layout import CALLER, PackedState
from treadle.checkpoint.resume import gathered
from treadle.planner.errors import InputError
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions
from treadle.runtime.checkpoint.frames import crc32c
from treadle.runtime.checkpoint.gpu import GpuTransfers
from treadle.runtime.checkpoint.local import LocalAgent
from treadle.runtime.checkpoint.memory import Bytes

Exchange = Callable[[int], Sequence[int]]
"""A number of this rank to those of all ranks."""


class GpuRankMemory(RankMemory):
    """As RankMemory, with the same calls. States are padded to the plan's size, so that all ranks send pieces alike.

    `stream` returns the stream of the training, `exchange` is called by a thread of its own, by all ranks as often.
    """

    def __init__(
        self,
        access: str | os.PathLike[str],
        decisions: CheckpointDecisions,
        rank: int,
        transfers: GpuTransfers,
        stream: Callable[[], int],
        exchange: Exchange,
    ) -> None:
        super().__init__(access, decisions, rank)
        self._transfers, self._stream, self._of_all = transfers, stream, exchange
        rounds = zip(*decisions.holders, strict=True)
        self._owners = [holding.index(self.machine) for holding in rounds]
        """Whose state arrives in each round, its own first."""
        self._ranges = [[(each.offset, each.bytes) for each in decisions.own]]
        for copy in range(1, decisions.problem.copies):
            self._ranges.append([(each.offset, each.bytes) for each in decisions.pieces if each.copy == copy])
        self._halves: list[Bytes] = []
        self._version = -1
        self._worker = ThreadPoolExecutor(1, "treadle checkpoints")
        self._kept: Future[None] | None = None
        self._pin()

    def begin(self, state: PackedState, *, first: bool = False) -> None:
        self._settle()
        size = self.decisions.problem.state_bytes
        self._version = state.version
        self._halves = [self.agent.begin(owner, state.version, size) for owner in self._owners]
        header, *tensors = state.parts
        device = tensors[0].device if tensors else header.device
        self._transfers.begin([header.to(device), *tensors], self._halves, self._stream())

    def release(self, span: int) -> None:
        if span >= 0:
            self._transfers.release(span)

    def release_own(self, message: int | None) -> None:
        if message != -1:
            self._transfers.message(len(self.decisions.problem.messages) if message is None else message)

    def drain(self) -> None:
        """Let all leave that is left. The update waits for it on the device; the version is whole some time after."""
        self._transfers.drain(self._stream())
        self._kept = self._worker.submit(self._keep, self._version, self._halves)

    def close(self) -> None:
        try:
            self._settle()
        finally:
            self._worker.shutdown()
            self._transfers.close()
            super().close()

    def _exchange(self, agent: LocalAgent) -> None:
        self._settle()
        self._transfers.unpin()
        self.agent.close()
        self.agent = agent
        self._pin()

    def _pin(self) -> None:
        for owner in self._owners:
            self._transfers.pin(self.agent.memory(owner))

    def _settle(self) -> None:
        """Wait until the version before is whole on all machines. Raises CheckFailed where it is not."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.result()

    def _keep(self, version: int, halves: Sequence[Bytes]) -> None:
        self._transfers.wait()
        size, devices = self.decisions.problem.state_bytes, self.decisions.problem.devices
        sums = self._of_all(crc32c(halves[0]))
        for owner, ranges in zip(self._owners, self._ranges, strict=True):
            for offset, length in ranges:
                self.agent.placed(owner, version, offset, length)
            self.agent.commit(owner, version, size, sums[owner * devices + self.rank % devices])
        self._of_all(0)  # no rank begins the next version before all have this one


def on_gpu(
    access: str | os.PathLike[str], decisions: CheckpointDecisions, rank: int, device: torch.device
) -> GpuRankMemory:
    """The memory of a rank that trains on `device` over NCCL, whose communicator of all ranks carries the pieces too.
    All ranks call it together. Raises InputError without a process group of NCCL, MissingBackendError without nvcc."""
    if not distributed.is_initialized() or "nccl" not in distributed.get_backend():
        raise InputError("found states on a GPU without NCCL, expected init_process_group() with it", where=CALLER)
    group = distributed.new_group(backend="gloo")
    with torch.cuda.device(device):
        distributed.all_reduce(torch.zeros(1, device=device))  # NCCL makes its communicator with the first collective
        queue = torch.cuda.Stream()
        backend: Any = distributed.distributed_c10d._get_default_group()._get_backend(device)
        transfers = GpuTransfers(decisions, rank, backend._comm_ptr(), queue.cuda_stream)
        return GpuRankMemory(
            access,
            decisions,
            rank,
            transfers,
            lambda: torch.cuda.current_stream(device).cuda_stream,
            lambda value: gathered(value, group),
        )
