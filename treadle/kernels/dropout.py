"""What a dropout's gradient needs, smaller than its bool mask: one bit for each element, or the generator's state.

Bits: "Gist", applied to dropout. State: MONeT, section 4.4 and its runtime, keeps the generator's state.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treadle.kernels.bits import packed, unpacked
from treadle.kernels.geometry import Shape
from treadle.runtime.rng import replayed, state

_aten = torch.ops.aten


def dropout_mask_pack(mask: Tensor) -> Tensor:
    """The bool `mask` of `aten.native_dropout`, one bit for each element: uint8 [ceil(n/8)]. Workspace: n bytes, at
    most 1 MiB where `mask` is contiguous."""
    return packed(mask, lambda values, into: into.copy_(values))


def dropout_backward_packed(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    """`aten.native_dropout_backward` from `dropout_mask_pack`, bit for bit. Workspace: one byte and one number for each
    element, at most 1 Mi of them where `grad` is contiguous."""
    result = torch.empty_like(grad)
    for flags, source, into in unpacked(mask, grad, result):
        torch.mul(source, flags.to(grad.dtype), out=into).mul_(scale)
        del flags
    return result


def dropout_backward_rng(grad: Tensor, state: Tensor, p: float, stride: Shape | None = None) -> Tensor:
    """Gradient of a dropout of probability `p` that drew its mask when the generator of its device was in `state`.

    The mask is drawn again in the order of memory, so `grad` must lie in memory as the dropout's input did, or
    `stride` must say how that lay. Workspace: one byte for each element, and a copy of `grad` where it lies otherwise.
    """
    if stride is not None and tuple(stride) != grad.stride():
        grad = torch.empty_strided(grad.shape, tuple(stride), dtype=grad.dtype, device=grad.device).copy_(grad)
    with replayed(state, grad.device):
        if grad.device.type != "cpu":  # there the drawing is fused with the product
            redrawn: Tensor = _aten.native_dropout(grad, p, True)[0]
            return redrawn
        mask = torch.empty_like(grad, dtype=torch.bool).bernoulli_(1 - p)
    result: Tensor = _aten.native_dropout_backward(grad, mask, 0.0 if p == 1 else 1 / (1 - p))
    return result


def rng_state(like: Tensor) -> Tensor:
    """The state now of the generator that serves `like`'s device: bytes in host memory."""
    return state(like.device)
