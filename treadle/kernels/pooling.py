"""Max pooling without the int64 index that ATen makes: none at all, or the place in the window in one byte.

"Gist", keeps 4 bits for windows of 3x3; MONeT, section 4.4, one byte. Every kernel walks over the cells
of the window and treats all windows at once. Where a maximum occurs twice its first place counts, as in ATen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treadle.kernels.bits import kept, words
from treadle.kernels.geometry import Pair, Shape, Size, cells, layout, output_size, pair


def max_pool2d(
    x: Tensor, kernel: Size, stride: Size = (), padding: Size = 0, dilation: Size = 1, ceil_mode: bool = False
) -> Tensor:
    """The values of `aten.max_pool2d_with_indices` on [N, C, H, W] or [C, H, W], bit for bit. No workspace."""
    geometry = _geometry(x.shape, kernel, stride, padding, dilation, ceil_mode)
    lowest = -torch.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    y = _like(x, geometry[1]).fill_(lowest)
    for _, _, pixels, windows in cells(*geometry):
        part = y[..., *windows]
        torch.maximum(part, x[..., *pixels], out=part)
    return y


def max_pool2d_index(
    x: Tensor,
    kernel: Size,
    stride: Size = (),
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    y: Tensor | None = None,
) -> Tensor:
    """Place i * kernel width + j of each maximum in its window: uint8 (int16 above 256 cells) of the output's shape.

    `y` are the pool's values, if available. Workspace: one byte for each output, and the values if they are not given.
    """
    geometry = _geometry(x.shape, kernel, stride, padding, dilation, ceil_mode)
    _, size, (height, width), *_ = geometry
    if y is None:
        y = max_pool2d(x, kernel, stride, padding, dilation, ceil_mode)
    dtype, last = (torch.uint8, 255) if height * width <= 256 else (torch.int16, 32767)
    index = _like(x, size, dtype).fill_(last)
    for i, j, pixels, windows in cells(*geometry):
        # The least place of those not smaller than the maximum; of one that is smaller, `last`. NaN is not smaller.
        smaller = torch.lt(x[..., *pixels], y[..., *windows])
        place = (
            (smaller.view(dtype) if dtype == torch.uint8 else smaller.to(dtype)).mul_(last).bitwise_or_(i * width + j)
        )
        del smaller
        part = index[..., *windows]
        torch.minimum(part, place, out=part)
        del place
    return index


def max_pool2d_backward_index(
    grad: Tensor,
    index: Tensor,
    input_shape: Shape,
    kernel: Size,
    stride: Size = (),
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Gradient of the pool's input, of `input_shape`, from `max_pool2d_index`. Contributions to one pixel are added in
    ATen's order. Workspace: one gradient of the output and one byte for each of its elements."""
    geometry = _geometry(input_shape, kernel, stride, padding, dilation, ceil_mode)
    image, _, (_, width), *_ = geometry
    result = _like(grad, image).zero_()
    for i, j, pixels, windows in reversed(list(cells(*geometry))):
        chosen = torch.eq(index[..., *windows], i * width + j)
        part = kept(chosen, grad)
        del chosen
        part.bitwise_and_(words(grad[..., *windows]))
        result[..., *pixels].add_(part.view(grad.dtype))
        del part
    return result


def max_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Size,
    stride: Size = (),
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Gradient of the pool's input `x` from `x` alone: the index is found again. Workspace: one output, and two bytes
    (four above 256 cells) for each of its elements."""
    settings = (kernel, stride, padding, dilation, ceil_mode)
    return max_pool2d_backward_index(grad, max_pool2d_index(x, *settings), x.shape, *settings)


def _geometry(
    shape: Shape, kernel: Size, stride: Size, padding: Size, dilation: Size, ceil_mode: bool
) -> tuple[Pair, Pair, Pair, Pair, Pair, Pair]:
    """Image, windows, kernel, stride, padding and dilation, each for height and width. No stride is the kernel."""
    image, window = (shape[-2], shape[-1]), pair(kernel)
    step = window if not isinstance(stride, int) and not len(stride) else pair(stride)
    border, gap = pair(padding), pair(dilation)
    axes = zip(image, window, step, border, gap, strict=True)
    height, width = (output_size(*axis, ceil_mode) for axis in axes)
    return image, (height, width), window, step, border, gap


def _like(tensor: Tensor, size: Pair, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor of `tensor`'s leading dimensions and layout."""
    shape = *tensor.shape[:-2], *size
    return torch.empty(shape, dtype=dtype or tensor.dtype, device=tensor.device, memory_format=layout(tensor))
