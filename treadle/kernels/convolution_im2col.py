"""Convolution as a matrix product over columns: every window of the image written out (im2col).

With the whole batch in one matrix [C * kernel, N * windows] it is one product per group; sample by sample the columns
take 1/N of the memory. "Caffe con Troll" weighs the two.

Shapes: image [N, C, H, W], weight [O, C / groups, kh, kw], output [N, O, P, Q].
"""

from __future__ import annotations

import torch
from torch import Tensor

from treadle.kernels.geometry import Pair, Shape, Size, cells, layout, output_size, padded, pair


def conv2d_im2col(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """2d convolution with the columns of the whole batch.

    Workspace beyond the result: max(border + columns - y, columns, y) with columns of N * C * kh * kw * P * Q elements
    and, where there is padding, a border copy of N * C * (H + 2 p) * (W + 2 p).
    """
    size, kernel, steps, border, gaps = _sizes(x.shape, weight.shape, stride, padding, dilation)
    count, outputs = x.shape[0], weight.shape[0]
    columns = _columns(padded(x, border), size, kernel, steps, gaps, groups)
    product = torch.bmm(_matrix(weight, groups), columns)
    del columns
    y = _laid_out(product.view(outputs, count, *size).transpose(0, 1), x)
    del product
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def conv2d_im2col_sample(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """2d convolution with the columns of one sample at a time. Workspace: those columns, C * kh * kw * P * Q elements,
    and with padding a border copy of C * (H + 2 p) * (W + 2 p). A 1x1 kernel of stride 1 needs none."""
    size, kernel, steps, border, gaps = _sizes(x.shape, weight.shape, stride, padding, dilation)
    y = x.new_empty((x.shape[0], weight.shape[0], *size))
    matrix = _matrix(weight, groups)
    for image, result in zip(_samples(x), y, strict=True):
        columns = _columns(padded(image, border), size, kernel, steps, gaps, groups)
        torch.bmm(matrix, columns, out=result.view(groups, matrix.shape[1], size[0] * size[1]))
        del columns
    if bias is not None:
        y.add_(bias.view(-1, 1, 1))
    return _laid_out(y, x)


def weight_gradient_im2col(
    grad: Tensor, x: Tensor, weight_shape: Shape, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """Gradient of the weight with the columns of the whole batch. Workspace beyond the result: max(border + columns,
    columns + |grad| + result) - result, in elements as above."""
    size, kernel, steps, border, gaps = _sizes(x.shape, weight_shape, stride, padding, dilation)
    columns = _columns(padded(x, border), size, kernel, steps, gaps, groups)
    rows = grad.transpose(0, 1).reshape(groups, weight_shape[0] // groups, columns.shape[2])
    return torch.bmm(rows, columns.transpose(1, 2)).view(tuple(weight_shape))


def weight_gradient_im2col_sample(
    grad: Tensor, x: Tensor, weight_shape: Shape, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """Gradient of the weight with the columns of one sample at a time. Workspace as of `conv2d_im2col_sample`."""
    size, kernel, steps, border, gaps = _sizes(x.shape, weight_shape, stride, padding, dilation)
    result = grad.new_zeros((groups, weight_shape[0] // groups, weight_shape[1] * kernel[0] * kernel[1]))
    for image, outer in zip(_samples(x), grad, strict=True):
        columns = _columns(padded(image, border), size, kernel, steps, gaps, groups)
        result.baddbmm_(outer.reshape(groups, result.shape[1], size[0] * size[1]), columns.transpose(1, 2))
        del columns
    return result.view(tuple(weight_shape))


def input_gradient_im2col(
    grad: Tensor, weight: Tensor, input_shape: Shape, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """Gradient of the image, with the gradients of the columns of the whole batch. Workspace beyond the result:
    max(columns + |grad| - result, columns); |grad| is 0 for a batch of one."""
    geometry = _sizes(input_shape, weight.shape, stride, padding, dilation)
    count, (height, width) = len(grad), geometry[0]
    rows = grad.transpose(0, 1).reshape(groups, weight.shape[0] // groups, count * height * width)
    columns = torch.bmm(_matrix(weight, groups).transpose(1, 2), rows)
    del rows
    result = _empty(input_shape, grad).zero_()
    _add_columns(result, columns, geometry)
    return result


def input_gradient_im2col_sample(
    grad: Tensor, weight: Tensor, input_shape: Shape, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """Gradient of the image, with the gradients of one sample's columns, C * kh * kw * P * Q elements, at a time."""
    geometry = _sizes(input_shape, weight.shape, stride, padding, dilation)
    height, width = geometry[0]
    result = _empty(input_shape, grad).zero_()
    matrix = _matrix(weight, groups).transpose(1, 2)
    for image, outer in zip(_samples(result), grad, strict=True):
        columns = torch.bmm(matrix, outer.reshape(groups, matrix.shape[2], height * width))
        _add_columns(image, columns, geometry)
        del columns
    return result


_Sizes = tuple[Pair, Pair, Pair, Pair, Pair]


def _sizes(image_shape: Shape, weight_shape: Shape, stride: Size, padding: Size, dilation: Size) -> _Sizes:
    """Output size, kernel, stride, padding and dilation, each for height and width."""
    kernel, steps, border, gaps = (weight_shape[2], weight_shape[3]), pair(stride), pair(padding), pair(dilation)
    axes = zip(image_shape[2:], kernel, steps, border, gaps, strict=True)
    height, width = (output_size(*axis) for axis in axes)
    return (height, width), kernel, steps, border, gaps


def _columns(x: Tensor, size: Pair, kernel: Pair, stride: Pair, dilation: Pair, groups: int) -> Tensor:
    """[G, C / G * kh * kw, N * P * Q] of `x`, which has its border; a copy but for a 1x1 kernel on one sample."""
    sample, channel, row, column = x.stride()
    windows = x.as_strided(
        (x.shape[1], *kernel, x.shape[0], *size),
        (channel, row * dilation[0], column * dilation[1], sample, row * stride[0], column * stride[1]),
    )
    return windows.reshape(groups, x.shape[1] // groups * kernel[0] * kernel[1], x.shape[0] * size[0] * size[1])


def _add_columns(image: Tensor, columns: Tensor, geometry: _Sizes) -> None:
    """Add what `_columns` takes apart back together: `columns` [groups, C / groups * kh * kw, N * P * Q]."""
    size, kernel, *rest = geometry
    parts = columns.view(image.shape[1], *kernel, image.shape[0], *size)
    for i, j, pixels, windows in cells((image.shape[2], image.shape[3]), size, kernel, *rest):
        image[..., *pixels].add_(parts[:, i, j, :, *windows].transpose(0, 1))


def _matrix(weight: Tensor, groups: int) -> Tensor:
    return weight.reshape(groups, weight.shape[0] // groups, weight[0].numel())


def _samples(x: Tensor) -> list[Tensor]:
    return [x[n : n + 1] for n in range(len(x))]


def _empty(shape: Shape, like: Tensor) -> Tensor:
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device, memory_format=layout(like))


def _laid_out(y: Tensor, like: Tensor) -> Tensor:
    return y.contiguous(memory_format=layout(like))
