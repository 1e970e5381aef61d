"""The compressors written with PyTorch's operators, as libraries have them, with error feedback around each.

`published` is the frame of GRACE (Xu et al., GRACE: A Compressed Communication Framework for Distributed Machine
Learning): v = gradient + residual, compress, decompress, residual = v - decompressed. `tightened` works in the residual
and allocates as little as PyTorch allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from treadle.kernels.bits import packed
from treadle.planner.machine.compressors import QSGD_BUCKET, matrix

Payload = tuple[Tensor, ...]


@dataclass(frozen=True)
class Peer:
    """compress(v, k, seed), and what of v is left by it, computed in v."""

    compress: Callable[[Tensor, int, int], Payload]
    decompress: Callable[[Payload, Tensor], Tensor]
    leave: Callable[[Payload, Tensor], object]

    def published(self, values: Tensor, residual: Tensor, kept: int, seed: int) -> None:
        v = values + residual
        payload = self.compress(v, kept, seed)
        residual.copy_(v - self.decompress(payload, v))

    def tightened(self, values: Tensor, residual: Tensor, kept: int, seed: int) -> None:
        self.leave(self.compress(residual.add_(values), kept, seed), residual)


def randomk(v: Tensor, kept: int, seed: int) -> Payload:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.arange(kept + 1).mul_(len(v)).div_(kept, rounding_mode="floor")
    spread = torch.rand(kept, generator=generator, dtype=torch.float64)
    indices = edges[:-1] + spread.mul_(edges[1:] - edges[:-1]).long()
    return v[indices], indices


def topk(v: Tensor, kept: int, seed: int) -> Payload:
    indices = torch.topk(v.abs(), kept, sorted=False).indices.sort().values
    return v[indices], indices


def dgc(v: Tensor, kept: int, seed: int) -> Payload:
    """The threshold of a sample of 1 %, then the largest of what reaches it."""
    magnitudes = v.abs()
    sample = magnitudes[torch.randint(len(v), (max(1, len(v) // 100),))]
    threshold = torch.topk(sample, max(1, len(sample) * kept // len(v)), sorted=False).values.min()
    indices = torch.nonzero(magnitudes >= threshold).view(-1)
    if len(indices) > kept:
        indices = indices[torch.topk(magnitudes[indices], kept, sorted=False).indices].sort().values
    return v[indices], indices


def scattered(payload: Payload, v: Tensor) -> Tensor:
    return torch.zeros_like(v).scatter_(0, payload[1], payload[0])


def unset(payload: Payload, v: Tensor) -> None:
    v[payload[1]] = 0


def efsignsgd(v: Tensor, kept: int, seed: int) -> Payload:
    return packed(v, lambda part, into: torch.lt(part, 0, out=into)), v.abs().mean()


def scaled_signs(payload: Payload, v: Tensor) -> Tensor:
    return torch.where(v < 0, -payload[1], payload[1])


def onebit(v: Tensor, kept: int, seed: int) -> Payload:
    negative = v < 0
    below = negative.sum()
    lower = torch.where(negative, v, 0).sum()
    upper = (v.sum() - lower) / (len(v) - below)
    return packed(v, lambda part, into: torch.lt(part, 0, out=into)), upper, lower / below


def means(payload: Payload, v: Tensor) -> Tensor:
    return torch.where(v < 0, payload[2], payload[1])


def _scales(v: Tensor) -> tuple[Tensor, Tensor]:
    buckets = v.view(-1, QSGD_BUCKET)
    scales = buckets.abs().amax(1, keepdim=True).div_(127)
    return buckets / scales, scales


def qsgd(v: Tensor, kept: int, seed: int) -> Payload:
    levels, scales = _scales(v)
    return levels.add_(torch.rand_like(levels)).floor_().clamp_(-127, 127).to(torch.int8), scales


def int8(v: Tensor, kept: int, seed: int) -> Payload:
    levels, scales = _scales(v)
    return levels.round_().to(torch.int8), scales


def scaled(payload: Payload, v: Tensor) -> Tensor:
    return (payload[0] * payload[1]).view(-1)


def low_rank(rank: int, elements: int) -> Peer:
    """Both factors, orthogonal as PyTorch's PowerSGD hook makes them."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

    rows, columns = matrix(elements)
    factor = torch.randn(columns, rank)

    def compress(v: Tensor, kept: int, seed: int) -> Payload:
        whole = v.view(rows, columns)
        left = whole @ factor
        _orthogonalize(left.unsqueeze(0))
        return left, whole.T @ left

    def product(payload: Payload, v: Tensor) -> Tensor:
        return (payload[0] @ payload[1].T).view(-1)

    return Peer(compress, product, lambda payload, v: v.sub_(product(payload, v)))


def _dense(compress: Callable[[Tensor, int, int], Payload], decompress: Callable[[Payload, Tensor], Tensor]) -> Peer:
    return Peer(compress, decompress, lambda payload, v: v.sub_(decompress(payload, v)))


def _half(dtype: torch.dtype) -> Peer:
    return _dense(lambda v, kept, seed: (v.to(dtype),), lambda payload, v: payload[0].float())


PEERS = {
    "randomk": Peer(randomk, scattered, unset),
    "topk": Peer(topk, scattered, unset),
    "dgc": Peer(dgc, scattered, unset),
    "efsignsgd": _dense(efsignsgd, scaled_signs),
    "onebit": _dense(onebit, means),
    "qsgd": _dense(qsgd, scaled),
    "int8": _dense(int8, scaled),
    "fp16": _half(torch.float16),
    "bf16": _half(torch.bfloat16),
}
