"""Coders of tests, written without the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass
class Halves(Identity):
    """Every second value, by turns, with error feedback: the rest is zero."""

    state: IdentityCoders
    names: tuple[str, ...]

    def encode(self, point: str, values: Tensor, payload: Tensor, *, shared: bool) -> None:
        key = "/".join((*self.names, point))
        residual = self.state.residuals.setdefault(key, torch.zeros_like(values))
        whole = values + residual
        sent = payload.view(torch.float32).zero_()
        sent[self.state.iterations % 2 :: 2] = whole[self.state.iterations % 2 :: 2]
        residual.copy_(whole - sent)


@dataclass
class IdentityCoders(Coders):
    """`identity`, and `halves` with its residuals."""

    residuals: dict[str, Tensor] = field(default_factory=dict)
    iterations: int = 0

    def coder(self, compressor: str, names: Sequence[str], device: str) -> Coder:
        return Identity() if compressor == "identity" else Halves(self, tuple(names))

    def state_dict(self) -> dict[str, Any]:
        return {"iterations": self.iterations, "residuals": {key: each.clone() for key, each in self.residuals.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iterations, self.residuals = state["iterations"], {k: v.clone() for k, v in state["residuals"].items()}

    def norms(self) -> dict[str, float]:
        return {key: float(each.norm()) for key, each in self.residuals.items()}
