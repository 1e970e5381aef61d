"""Winograd's minimal filtering F(2x2, 3x3): 3x3 convolution of stride 1 with 16 products for 4 outputs, not 36.

"Fast Algorithms for Convolutional Neural Networks", section 4.1: the image is cut into tiles of 4x4 that overlap by
2, tiles and kernels are transformed, multiplied channel by channel as 16 matrix products, and transformed back:
y = A' [(G g G') * (B' d B)] A.

Shapes: image [N, C, H, W], weight [O, C, 3, 3], output [N, O, P, Q], T = N * ceil(P / 2) * ceil(Q / 2) tiles.
Elements beyond the result, for th = ceil(P / 2), tw = ceil(Q / 2): kernels U = 16 O C, tiles V = 16 C T, products
M = 16 O T, a border copy B = N C (2 th + 2) (2 tw + 2) (0 where nothing is added), rows R = N C th (2 tw + 2), and
workspace = max(U + V + B + R - y, U + V + M - y, M).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from treadle.kernels.geometry import Pair, Shape, Size, layout, pair

_KERNEL = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))
"""G: 4x3."""


def conv2d_winograd(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """2d convolution with a 3x3 kernel, stride 1, dilation 1, groups 1. Raises ValueError for anything else."""
    _require(weight.shape, stride, dilation, groups)
    return _filtered(x, _kernels(weight), bias, pair(padding))


def input_gradient_winograd(
    grad: Tensor, weight: Tensor, input_shape: Shape, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """Gradient of the image: the gradient convolved with the weight turned around. Limits as of `conv2d_winograd`."""
    _require(weight.shape, stride, dilation, groups)
    height, width = pair(padding)
    return _filtered(grad, _kernels(weight, turned=True), None, (2 - height, 2 - width))


def _require(weight_shape: Shape, stride: Size, dilation: Size, groups: int) -> None:
    if tuple(weight_shape[2:]) != (3, 3) or pair(stride) != (1, 1) or pair(dilation) != (1, 1) or groups != 1:
        raise ValueError(
            f"found kernel {tuple(weight_shape[2:])}, stride {stride}, dilation {dilation}, groups {groups}; "
            "Winograd's F(2x2, 3x3) takes kernel 3x3, stride 1, dilation 1, groups 1"
        )


def _kernels(weight: Tensor, *, turned: bool = False) -> Tensor:
    """[16, O, C] of `weight` [O, C, 3, 3], or [16, C, O] of the weight turned by 180 degrees."""
    one = torch.tensor(_KERNEL, dtype=weight.dtype, device=weight.device)
    both = torch.kron(one, one)
    outputs, inputs = weight.shape[:2]
    result = torch.mm(both.flip(1) if turned else both, weight.reshape(outputs * inputs, 9).t())
    result = result.view(16, outputs, inputs)
    return result.transpose(1, 2) if turned else result


def _filtered(x: Tensor, kernels: Tensor, bias: Tensor | None, padding: Pair) -> Tensor:
    count, _, height, width = x.shape
    size = height + 2 * padding[0] - 2, width + 2 * padding[1] - 2
    tiles = (size[0] + 1) // 2, (size[1] + 1) // 2
    products = torch.bmm(kernels, _tiles(x, tiles, padding))
    del kernels
    shape = count, products.shape[1], *size
    y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout(x))
    # The transform back works in place: rows 0 and 1 of the 4x4 products become the sums, then columns 0 and 1.
    square = products.view(4, 4, products.shape[1], count, *tiles)
    _fold(square)
    for row in range(2):
        _fold(square[row])
        for column in range(2):
            part = y[:, :, row::2, column::2]
            part.copy_(square[row, column].transpose(0, 1)[:, :, : part.shape[2], : part.shape[3]])
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def _tiles(x: Tensor, tiles: Pair, padding: Pair) -> Tensor:
    """[16, C, T]: B' d B of every tile d."""
    count, channels, height, width = x.shape
    rows, columns = tiles
    top, left = padding
    border = (left, 2 * columns + 2 - width - left, top, 2 * rows + 2 - height - top)
    image = F.pad(x, border) if any(border) else x
    result = x.new_empty((4, 4, channels, count, rows, columns))
    for i, (first, second, sign) in enumerate(_STEPS):
        part = torch.add(_every_other(image, 2, first, rows), _every_other(image, 2, second, rows), alpha=sign)
        for j, (left_, right, side) in enumerate(_STEPS):
            torch.add(
                _every_other(part, 3, left_, columns),
                _every_other(part, 3, right, columns),
                alpha=side,
                out=result[i, j].transpose(0, 1),
            )
        del part
    return result.view(16, channels, count * rows * columns)


_STEPS = ((0, 2, -1), (1, 2, 1), (2, 1, -1), (1, 3, -1))
"""B' line by line: element a plus or minus element b of the four."""


def _every_other(x: Tensor, axis: int, first: int, count: int) -> Tensor:
    return x.narrow(axis, first, max(0, 2 * count - 1)).movedim(axis, -1)[..., ::2].movedim(-1, axis)


def _fold(square: Tensor) -> None:
    """A' of the four slices of `square`, in place: slice 0 becomes 0 + 1 + 2, slice 1 becomes 1 - 2 - 3."""
    square[0].add_(square[1]).add_(square[2])
    square[1].sub_(square[2]).sub_(square[3])
