"""Compressors as they are measured: one interface for payloads of one exchange and for the two factors of PowerSGD."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from treadle.kernels.compression import PowerSGD, codec
from treadle.planner.machine.compressors import compressor


class MeasuredCodec(Protocol):
    """A compressor for vectors of one length, as in `treadle.kernels.compression.codec`."""

    @property
    def wire_bytes(self) -> int: ...

    def encode(self, values: Tensor, payload: Tensor, residual: Tensor | None, seed: int) -> None: ...

    def decode_add(self, payloads: Tensor, out: Tensor, seed: int) -> None: ...


class CodecMaker(Protocol):
    """Makes the codec of `name` for `elements`, such as `measured_codec`."""

    def __call__(self, name: str, elements: int, *, device: str) -> MeasuredCodec: ...


class FactorsCodec:
    """PowerSGD with its two factors as a payload of a single rank, which sums nothing between them. It keeps a residual
    of its own."""

    def __init__(self, name: str, elements: int, device: torch.device | str) -> None:
        self._powersgd = PowerSGD(name, elements, device=device)
        self.wire_bytes = self._powersgd.wire_bytes

    def encode(self, values: Tensor, payload: Tensor, residual: Tensor | None, seed: int) -> None:
        left = self._powersgd.first(values)
        right = self._powersgd.second(left)
        factors = payload.view(torch.float32)
        factors[: left.numel()] = left.view(-1)
        factors[left.numel() :] = right.view(-1)

    def decode_add(self, payloads: Tensor, out: Tensor, seed: int) -> None:
        """Decodes the sum of all payloads, which is one."""
        right = payloads[: self.wire_bytes].view(torch.float32)[-self._powersgd.factor.numel() :]
        self._powersgd.decode_add(right.view(self._powersgd.factor.shape), out)


def measured_codec(name: str, elements: int, *, device: str) -> MeasuredCodec:
    """Raises what `codec` and `PowerSGD` raise."""
    if compressor(name).algorithm.name == "powersgd":
        return FactorsCodec(name, elements, device)
    return codec(name, elements, device=device)
