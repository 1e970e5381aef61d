"""Tensors in the strides of the capture, for calls whose results depend on them.

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
