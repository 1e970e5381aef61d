"""Coders of tests, written without the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from treadle.runtime.compression.coders import Coders
from treadle.runtime.compression.group_run import Coder


class Identity:
    """float32 values as they are."""

    def wire_bytes(self, elements: int) -> int:
        return 4 * elements

    def encode(self, point: str, values: Tensor, payload: Tensor, *, shared: bool) -> None:
        payload.view(torch.float32).copy_(values)

    def decode_add(self, point: str, payloads: Tensor, out: Tensor) -> None:
        for piece in payloads.view(torch.float32).view(-1, out.numel()):
            out += piece

    def sum(self, point: str, payload: Tensor, elements: int, allreduce: Callable[[Tensor], object]) -> None:
        allreduce(payload.view(torch.float32))


class IdentityCoders(Coders):
    """Coders without residuals."""

    def coder(self, compressor: str, names: Sequence[str], device: str) -> Coder:
        return Identity()

    def state_dict(self) -> dict[str, Any]:
        return {"iterations": self.iterations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iterations = state["iterations"]

    def norms(self) -> dict[str, float]:
        return {}
