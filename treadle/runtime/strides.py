"""Tensors in the strides of the capture, for calls whose results depend on them, and copies that keep their strides.

Kernels may lay their results out otherwise than fake tensors say, and gradients come from the caller in any
strides. Most calls compute the same from any of them; `as_strided` and similar calls read memory by its addresses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def exact(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """`tensor` itself where it has `strides`, else a copy that has them."""
    if all(size <= 1 or a == b for size, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True)):
        return tensor
    return torch.empty_strided(tensor.shape, tuple(strides), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def copied(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """A copy of `tensor` on `device`, without gradient and in the same strides, also where these leave gaps (a slice)
    or let elements share memory (`expand`)."""
    values = tensor.detach()
    if values.layout != torch.strided or not values.numel() or values.is_conj() or values.is_neg():
        return values.to(device, copy=True)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(values.shape, values.stride(), strict=True))
    flat = values.as_strided((extent,), (1,)).to(device, copy=True)
    return flat.as_strided(values.shape, values.stride(), 0)
