"""The gradients of a convolution one at a time, so that its input can be freed between them (MONeT, section 4.4).

ATen computes one without the other, but asks for a tensor of the shape of the one it does not read. An expanded
scalar stands in for it, which ATen on a CPU copies into dense memory nonetheless. For the weight that is little. The
input gradient is there computed as what it is, the convolution in the other direction, which asks for no such tensor
and is the same oneDNN primitive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from treadle.kernels.convolution_fft import input_gradient_fft, weight_gradient_fft
from treadle.kernels.convolution_im2col import (
    input_gradient_im2col,
    input_gradient_im2col_sample,
    weight_gradient_im2col,
    weight_gradient_im2col_sample,
)
from treadle.kernels.convolution_winograd import input_gradient_winograd
from treadle.kernels.geometry import Shape, layout

_aten = torch.ops.aten
_Settings = tuple[Shape, Shape, Shape, bool, Shape, int]
"""Stride, padding, dilation, whether transposed, output padding, groups."""
_ONEDNN = (torch.float32, torch.bfloat16, torch.float16)
_WEIGHT: Mapping[str, Callable[..., Tensor]] = {
    "im2col": weight_gradient_im2col,
    "im2col_sample": weight_gradient_im2col_sample,
    "fft": weight_gradient_fft,
}
_INPUT: Mapping[str, Callable[..., Tensor]] = {
    "im2col": input_gradient_im2col,
    "im2col_sample": input_gradient_im2col_sample,
    "winograd": input_gradient_winograd,
    "fft": input_gradient_fft,
}


def conv2d_weight_gradient(
    grad: Tensor,
    x: Tensor,
    weight_shape: Shape,
    has_bias: bool,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    groups: int,
    algorithm: str,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of weight and, with `has_bias`, bias of a 2d convolution of `x` [N, C, H, W]. `algorithm` is direct
    (ATen's own), im2col, im2col_sample or fft. Raises KeyError for another."""
    if algorithm == "direct":
        return convolution_weight_gradient(
            grad, x, weight_shape, has_bias, stride, padding, dilation, False, [0, 0], groups
        )
    gradient = _WEIGHT[algorithm](grad, x, weight_shape, stride, padding, dilation, groups)
    return gradient, grad.sum((0, 2, 3)) if has_bias else None


def conv2d_input_gradient(
    grad: Tensor,
    weight: Tensor,
    input_shape: Shape,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    groups: int,
    algorithm: str,
) -> Tensor:
    """Gradient of the input, of `input_shape` [N, C, H, W], of a 2d convolution.

    `algorithm` is direct (ATen's own), im2col, im2col_sample, winograd or fft. Raises KeyError for another, and
    ValueError where Winograd cannot be used.
    """
    if algorithm == "direct":
        return convolution_input_gradient(grad, weight, input_shape, stride, padding, dilation, False, [0, 0], groups)
    return _INPUT[algorithm](grad, weight, input_shape, stride, padding, dilation, groups)


def convolution_weight_gradient(
    grad: Tensor,
    x: Tensor,
    weight_shape: Shape,
    has_bias: bool,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    transposed: bool,
    output_padding: Shape,
    groups: int,
) -> tuple[Tensor, Tensor | None]:
    """What `aten.convolution_backward` gives for weight and bias, any number of dimensions. Workspace: ATen's."""
    settings = (stride, padding, dilation, transposed, output_padding, groups)
    biases = [weight_shape[1] * groups if transposed else weight_shape[0]] if has_bias else None
    stand_in = _shape_only(weight_shape, grad)
    _, weight, bias = _aten.convolution_backward(grad, x, stand_in, biases, *settings, [False, True, has_bias])
    return weight, bias


def convolution_input_gradient(
    grad: Tensor,
    weight: Tensor,
    input_shape: Shape,
    stride: Shape,
    padding: Shape,
    dilation: Shape,
    transposed: bool,
    output_padding: Shape,
    groups: int,
) -> Tensor:
    """What `aten.convolution_backward` gives for the input, any number of dimensions. Workspace: ATen's."""
    settings = (stride, padding, dilation, transposed, output_padding, groups)
    if grad.device.type == "cpu" and grad.dtype in _ONEDNN:
        gradient = _reversed(grad, weight, input_shape, settings)
    else:
        stand_in = _shape_only(input_shape, grad)
        gradient = _aten.convolution_backward(grad, stand_in, weight, None, *settings, [True, False, False])[0]
    return gradient.contiguous(memory_format=layout(grad))


def _reversed(grad: Tensor, weight: Tensor, input_shape: Shape, settings: _Settings) -> Tensor:
    """The input gradient as the convolution in the other direction that it is."""
    stride, padding, dilation, transposed, _, groups = settings
    sizes = input_shape[2:]
    if transposed:
        gradient: Tensor = _aten.convolution(
            grad, weight, None, stride, padding, dilation, False, [0] * len(sizes), groups
        )
        # An output padding of a whole stride, which a dilation allows, leaves room for windows past the input.
        for axis, size in enumerate(sizes, 2):
            gradient = gradient.narrow(axis, 0, size)
        return gradient
    rest = [
        size - ((windows - 1) * step - 2 * border + gap * (kernel - 1) + 1)
        for size, windows, step, border, gap, kernel in zip(
            sizes, grad.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True
        )
    ]
    result: Tensor = _aten.convolution(grad, weight, None, stride, padding, dilation, True, rest, groups)
    return result


def _shape_only(shape: Shape, like: Tensor) -> Tensor:
    return like.new_zeros(()).expand(tuple(shape))
