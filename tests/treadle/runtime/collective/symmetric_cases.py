"""A stand-in for torch.distributed._symmetric_memory, of which the CPU has none: all ranks are in this process."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.distributed._symmetric_memory as real
from torch import Tensor


class Memory:
    """What a rank allocates n-th lies in the n-th row of buffers; `rank` is the one that calls."""

    def __init__(self, ranks: int, patch: pytest.MonkeyPatch) -> None:
        self.ranks, self.rank, self.calls = ranks, 0, [0] * ranks
        self.rows: list[list[Tensor]] = []
        patch.setattr(real, "empty", self.empty)
        patch.setattr(real, "rendezvous", self.rendezvous)
        stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
        patch.setattr(torch.cuda, "current_stream", lambda device: stream)

    def empty(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        number = self.calls[self.rank]
        self.calls[self.rank] += 1
        if number == len(self.rows):
            self.rows.append([torch.ones(size, dtype=dtype, device=device) for _ in range(self.ranks)])
        return self.rows[number][self.rank]

    def rendezvous(self, buffer: Tensor, group: object) -> SimpleNamespace:
        row = next(row for row in self.rows if any(each is buffer for each in row))
        return SimpleNamespace(buffer_ptrs=[each.data_ptr() for each in row], multicast_ptr=0)
