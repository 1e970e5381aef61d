"""Batch norm run again with the statistics of its first run, and norms' gradients from their output.

From the output y = weight * xhat + bias follows xhat = (y - bias) / weight ("In-Place Activated BatchNorm for Memory-
Optimized Training of DNNs"; MONeT, section 4.4), which needs weights that are not too small.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from treadle.kernels.geometry import Shape

_aten = torch.ops.aten
_MOST = 1 << 10
"""Most that the bias may exceed the weight by: the rounding error of xhat grows by as much."""


def safe_to_invert(weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether xhat can be had back from the output: every weight is finite, at least 1/1024 of its bias and far from
    the least number of its type, so that xhat loses at most 10 bits. Without `bias` that is taken to be below 1."""
    size = weight.abs()
    least = torch.ones_like(size) if bias is None else bias.abs().to(size.dtype)
    least = (least / _MOST).clamp_(min=torch.finfo(size.dtype).tiny * (1 << 24))
    return bool(((size >= least) & torch.isfinite(size)).all())


def batch_norm_again(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse_std: Tensor
) -> Tensor:
    """The first result of `aten.native_batch_norm` in training from its second and third.

    On a CPU bit for bit, unless those are of half precision, to which ATen rounds them after use. Running statistics
    are not touched. Workspace: a few numbers for each channel.
    """
    scale = inverse_std if weight is None else inverse_std * weight
    # Rounded once, as in ATen, which in evaluation then computes scale * x + shift just as in training.
    shift = torch.addcmul(torch.zeros_like(mean) if bias is None else bias, mean, scale, value=-1)
    zero, one = torch.zeros_like(scale), torch.ones_like(scale)
    result: Tensor = _aten.native_batch_norm(x, scale, shift, zero, one, False, 0.0, 0.0)[0]
    return result


def batch_norm_backward_output(
    grad: Tensor, y: Tensor, weight: Tensor, bias: Tensor, inverse_std: Tensor, output_mask: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of input, weight and bias of a batch norm in training from its output `y`; None where `output_mask`
    has False.

    y takes the place of the input: (y - bias) / weight is it normalised with "mean" bias and "inverse deviation"
    1 / weight, and the factor weight * inverse_std of the input's gradient is (1 / weight) * (weight^2 * inverse_std).
    Workspace: a few numbers for each channel.
    """
    inverse = weight.reciprocal()
    factor = weight * weight * inverse_std
    return tuple(
        _aten.native_batch_norm_backward(
            grad, y, factor, None, None, bias, inverse, True, 0.0, [bool(flag) for flag in output_mask]
        )
    )


def layer_norm_backward_output(
    grad: Tensor,
    y: Tensor,
    normalized_shape: Shape,
    weight: Tensor,
    bias: Tensor,
    inverse_std: Tensor,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients of input, weight and bias of a layer norm from its output `y` and the third result of
    `aten.native_layer_norm`; None where `output_mask` has False.

    Workspace: xhat, as large as `y`, and two numbers for each row.
    """
    xhat = (y - bias).div_(weight)
    mean, one = torch.zeros_like(inverse_std), torch.ones_like(inverse_std)
    first, *rest = _aten.native_layer_norm_backward(
        grad, xhat, list(normalized_shape), mean, one, weight, bias, [bool(flag) for flag in output_mask]
    )
    del xhat
    return (None if first is None else first.mul_(inverse_std), *rest)
