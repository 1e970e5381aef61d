"""What carries programs of real processes, by the name of the backend: the CPU runtime, or grouped messages of gloo or
of NCCL."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import distributed

from treadle.codegen.collective.program import CollectiveProgram
from treadle.runtime.collective.grouped import grouped_executor, nccl_group
from treadle.runtime.collective.messages import Executor, executor

Backend = Literal["cpu", "gloo", "nccl"]


class RankBackend(NamedTuple):
    """Where this process runs programs: the group for the framework's collectives, and the device of tensors."""

    backend: Backend
    group: Any
    device: torch.device

    def executor(self, program: CollectiveProgram, rank: int, *, cut: int = 1, checked: bool = True) -> Executor:
        """Runs `program` as `rank`; grouped messages are not `checked` for a program without meaning, such as a
        probe. Raises as the executor of the backend."""
        if self.backend == "cpu":
            return executor(program, rank, cut=cut)
        return grouped_executor(program, rank, self.group, self.device.type, cut=cut, checked=checked)


def backend_of(backend: Backend) -> RankBackend:
    """A call of all processes. Raises MissingBackendError on all of them without NCCL, or a GPU for each process."""
    if backend == "nccl":
        return RankBackend(backend, *nccl_group())
    return RankBackend(backend, distributed.group.WORLD, torch.device("cpu"))
