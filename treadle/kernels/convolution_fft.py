"""Convolution through the discrete Fourier transform: for large kernels, whose size its cost does not depend on.

"Fast Training of Convolutional Networks through FFTs": images, kernels and output gradients are transformed, multiplied
frequency by frequency as matrix products over channels or samples, and transformed back. Shifts around the circle fall
on zeros. A stride computes every output and keeps some.

Shapes: image [N, C, H, W], weight [O, C / groups, kh, kw], output [N, O, P, Q]; transforms of S x (T / 2 + 1) complex
numbers, S x T from `transform_size`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treadle.kernels.geometry import Pair, Shape, Size, layout, pair


def transform_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Least 2^a 3^b 5^c that holds an axis of `size` pixels, its padding on one side, the kernel and the outputs."""
    reach = dilation * (kernel - 1) + 1
    outputs = (size + 2 * padding - reach) // stride * stride + 1
    length = max(size + padding, reach, outputs)
    while _without(_without(_without(length, 2), 3), 5) != 1:
        length += 1
    return length


def conv2d_fft(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """2d convolution. Workspace: about twice the spectra of image and output, and once that of the weight."""
    sizes, steps, border, gaps = _sizes(x.shape, weight.shape, stride, padding, dilation)
    reach = [(gap * (k - 1) + 1) for gap, k in zip(gaps, weight.shape[2:], strict=True)]
    count = [(size + 2 * p - r) // s + 1 for size, p, r, s in zip(x.shape[2:], border, reach, steps, strict=True)]
    y = _back(
        torch.bmm(
            _spectrum(x, sizes, border, (1, 1), groups, "image"),
            _spectrum(weight, sizes, (0, 0), gaps, groups, "weight").conj_physical_().mT,
        ),
        sizes,
        groups,
    )
    y = y[:, :, : (count[0] - 1) * steps[0] + 1 : steps[0], : (count[1] - 1) * steps[1] + 1 : steps[1]]
    y = y.contiguous(memory_format=layout(x))
    return y if bias is None else y.add_(bias.view(-1, 1, 1))


def weight_gradient_fft(
    grad: Tensor, x: Tensor, weight_shape: Shape, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """Gradient of the weight: the image against the gradient, read where the kernel has its cells."""
    sizes, steps, border, gaps = _sizes(x.shape, weight_shape, stride, padding, dilation)
    result = _back(
        torch.bmm(
            _spectrum(grad, sizes, (0, 0), steps, groups, "image").conj_physical_().mT,
            _spectrum(x, sizes, border, (1, 1), groups, "image"),
        ),
        sizes,
        groups,
        weight=True,
    )
    height, width = weight_shape[2:]
    return result[:, :, : (height - 1) * gaps[0] + 1 : gaps[0], : (width - 1) * gaps[1] + 1 : gaps[1]].contiguous()


def input_gradient_fft(
    grad: Tensor, weight: Tensor, input_shape: Shape, stride: Size, padding: Size, dilation: Size, groups: int
) -> Tensor:
    """Gradient of the image: the gradient, spread by the stride, convolved with the weight."""
    sizes, steps, border, gaps = _sizes(input_shape, weight.shape, stride, padding, dilation)
    result = _back(
        torch.bmm(
            _spectrum(grad, sizes, (0, 0), steps, groups, "image"),
            _spectrum(weight, sizes, (0, 0), gaps, groups, "weight"),
        ),
        sizes,
        groups,
    )
    (top, left), (height, width) = border, input_shape[2:]
    return result[:, :, top : top + height, left : left + width].contiguous(memory_format=layout(grad))


def _sizes(
    image_shape: Shape, weight_shape: Shape, stride: Size, padding: Size, dilation: Size
) -> tuple[Pair, Pair, Pair, Pair]:
    steps, border, gaps = pair(stride), pair(padding), pair(dilation)
    axes = zip(image_shape[2:], weight_shape[2:], steps, border, gaps, strict=True)
    height, width = (transform_size(*axis) for axis in axes)
    return (height, width), steps, border, gaps


def _spectrum(t: Tensor, sizes: Pair, first: Pair, steps: Pair, groups: int, kind: str) -> Tensor:
    """Transform of `t` with its pixels at `first`, `first` + `steps`, ..., one matrix for each group and frequency:
    [G * F, N, C / G] of an image, [G * F, O / G, C / G] of a weight."""
    room = t.new_zeros((*t.shape[:2], *sizes))
    rows, columns = (
        slice(start, start + (count - 1) * step + 1, step)
        for start, count, step in zip(first, t.shape[2:], steps, strict=True)
    )
    room[:, :, rows, columns] = t
    waves: Tensor = torch.fft.rfft2(room) if room.numel() else room.new_empty(0, dtype=room.dtype.to_complex())
    del room
    frequencies = sizes[0] * (sizes[1] // 2 + 1)
    if kind == "weight":
        waves = waves.view(groups, t.shape[0] // groups, t.shape[1], frequencies).permute(0, 3, 1, 2)
    else:
        waves = waves.view(t.shape[0], groups, t.shape[1] // groups, frequencies).permute(1, 3, 0, 2)
    return waves.contiguous().view(groups * frequencies, *waves.shape[2:])


def _back(products: Tensor, sizes: Pair, groups: int, *, weight: bool = False) -> Tensor:
    """The inverse transform of [G * F, A, B]: [A, G * B, S, T], or with `weight` [G * A, B, S, T]. Frees `products`,
    which the caller must not hold. ATen copies the input of an inverse transform, so that is done in pieces."""
    _, first, second = products.shape
    plane = sizes[0], sizes[1] // 2 + 1
    shape = (groups * first, second) if weight else (first, groups * second)
    if not products.numel():
        return products.new_zeros((*shape, *sizes), dtype=products.dtype.to_real())
    order = (0, 3, 4, 1, 2) if weight else (3, 0, 4, 1, 2)
    waves = products.view(groups, *plane, first, second).permute(order).contiguous().view(*shape, *plane)
    del products
    image = torch.empty((*shape, *sizes), dtype=waves.dtype.to_real(), device=waves.device)
    for source, into in zip(waves, image, strict=True):
        torch.fft.irfft2(source, s=sizes, out=into)
    return image


def _without(number: int, prime: int) -> int:
    while number % prime == 0:
        number //= prime
    return number
