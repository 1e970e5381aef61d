"""Gradients of activations from what is smaller, or longer alive, than their input."""

from __future__ import annotations

import torch
from torch import Tensor

from treadle.kernels.bits import kept, packed, unpacked, words

_aten = torch.ops.aten


def relu_mask(y: Tensor) -> Tensor:
    """Which elements a ReLU lets through, from its input or output `y`: uint8 [ceil(n/8)], see `treadle.kernels.bits`.

    An element passes unless it is at most 0, so that NaN passes, as in `aten.threshold_backward`. "Binarize" of "Gist";
    intermediate-activated ReLU of MONeT, section 4.4. Workspace: n bytes, at most 1 MiB where `y` is contiguous.
    """
    return packed(y, lambda values, into: torch.le(values, 0, out=into).logical_not_())


def relu_backward_mask(grad: Tensor, mask: Tensor) -> Tensor:
    """`grad` where `relu_mask` gave `mask`, else 0: bit for bit `aten.threshold_backward`. Workspace: one byte and one
    number for each element, at most 1 Mi of them where `grad` is contiguous."""
    result = torch.empty_like(grad)
    for flags, source, into in unpacked(mask, grad, result):
        torch.bitwise_and(words(source), kept(flags, grad), out=words(into))
        del flags
    return result


def relu_backward_mask_(grad: Tensor, mask: Tensor) -> Tensor:
    """`relu_backward_mask` written into `grad`."""
    for flags, values in unpacked(mask, grad):
        words(values).bitwise_and_(kept(flags, grad))
        del flags
    return grad


def threshold_backward_(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    """`aten.threshold_backward` written into `grad`. For a ReLU `x` may be its input or its output. No workspace."""
    result: Tensor = _aten.threshold_backward.grad_input(grad, x, threshold, grad_input=grad)
    return result


def hardtanh_backward_output(grad: Tensor, y: Tensor, low: float, high: float) -> Tensor:
    """Gradient of hardtanh (ReLU6 with 0 and 6) from its output `y`: what lies on a bound was clipped. No workspace."""
    result: Tensor = _aten.hardtanh_backward(grad, y, low, high)
    return result


def hardtanh_backward_(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    """Gradient of hardtanh from its input or output `x`, written into `grad`. No workspace."""
    result: Tensor = _aten.hardtanh_backward.grad_input(grad, x, low, high, grad_input=grad)
    return result
