"""Max pooling without int64 indices: values, places and gradients are ATen's bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from tests.treadle.kernels.measured import workspace
from tests.treadle.kernels.shapes import laid_out, pairs
from treadle import kernels

aten = torch.ops.aten


@st.composite
def pools(draw: st.DrawFn) -> tuple[Tensor, tuple[Any, ...]]:
    """An image with many equal values, and kernel, stride, padding, dilation and ceil mode."""
    kernel, dilation = draw(pairs(1, 4)), draw(pairs(1, 2))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    image = [
        draw(st.integers(max(1, d * (k - 1) + 1 - 2 * p), 10))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    shape = [draw(st.integers(1, 3)), draw(st.integers(1, 3)), *image]
    x = torch.randint(-3, 4, shape).to(draw(st.sampled_from([torch.float32, torch.float64])))
    stride = draw(st.one_of(st.just([]), pairs(1, 3).map(list)))
    settings = list(kernel), stride, list(padding), list(dilation), draw(st.booleans())
    # For a window without any pixel ATen takes an index outside the image, and its backward writes there.
    assume(kernels.max_pool2d(torch.zeros_like(x), *settings).isfinite().all())
    return laid_out(x, draw(st.sampled_from(["rows", "last", "strange"]))), settings


@given(pools())
def test_values_and_places(case: tuple[Tensor, tuple[Any, ...]]) -> None:
    x, settings = case
    y, flat = aten.max_pool2d_with_indices(x, *settings)
    assert torch.equal(kernels.max_pool2d(x, *settings), y)
    index = kernels.max_pool2d_index(x, *settings)
    assert torch.equal(index, kernels.max_pool2d_index(x, *settings, y))
    assert torch.equal(places_in_image(index, x.shape, settings), flat)


@given(pools())
def test_gradient(case: tuple[Tensor, tuple[Any, ...]]) -> None:
    x, settings = case
    y, flat = aten.max_pool2d_with_indices(x, *settings)
    grad = torch.randn_like(y)
    expected = aten.max_pool2d_with_indices_backward(grad, x, *settings, flat)
    assert torch.equal(kernels.max_pool2d_backward(grad, x, *settings), expected)
    index = kernels.max_pool2d_index(x, *settings)
    assert torch.equal(kernels.max_pool2d_backward_index(grad, index, list(x.shape), *settings), expected)


def places_in_image(index: Tensor, shape: torch.Size, settings: tuple[Any, ...]) -> Tensor:
    """From the place in the window to the place in the image, as ATen counts it."""
    (_, width), stride, padding, dilation, _ = settings
    stride = stride or settings[0]
    cell = index.long()
    rows = torch.arange(index.shape[-2]).view(-1, 1) * stride[0] - padding[0] + cell // width * dilation[0]
    columns = torch.arange(index.shape[-1]) * stride[1] - padding[1] + cell % width * dilation[1]
    return rows * shape[-1] + columns


def test_empty_batches_and_missing_batch() -> None:
    assert kernels.max_pool2d(torch.randn(0, 3, 8, 8), 2).shape == (0, 3, 4, 4)
    assert kernels.max_pool2d_backward(torch.randn(0, 3, 4, 4), torch.randn(0, 3, 8, 8), 2).shape == (0, 3, 8, 8)
    x = torch.randn(3, 9, 8)
    assert torch.equal(kernels.max_pool2d(x, 3, 2, 1), aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])[0])


def test_nan_is_a_maximum() -> None:
    x = torch.tensor([[[[1.0, torch.nan], [3.0, 2.0]]]])
    assert kernels.max_pool2d(x, 2).isnan().all()
    index = kernels.max_pool2d_index(x, 2)
    assert kernels.max_pool2d_backward_index(torch.ones(1, 1, 1, 1), index, x.shape, 2).sum() == 1


def test_index_of_large_windows_takes_two_bytes() -> None:
    x = torch.randn(1, 2, 40, 40)
    assert kernels.max_pool2d_index(x, 16).dtype == torch.uint8
    assert kernels.max_pool2d_index(x, 17).dtype == torch.int16
    y, flat = aten.max_pool2d_with_indices(x, [17, 17])
    expected = aten.max_pool2d_with_indices_backward(y, x, [17, 17], [17, 17], [0, 0], [1, 1], False, flat)
    assert torch.equal(kernels.max_pool2d_backward(y, x, 17), expected)


def test_workspace() -> None:
    x = torch.randn(2, 8, 32, 32)
    y = kernels.max_pool2d(x, 2)
    index = kernels.max_pool2d_index(x, 2)
    assert workspace(kernels.max_pool2d, x, 2) == 0
    assert workspace(kernels.max_pool2d_index, x, 2) == y.nbytes + index.nbytes
    assert workspace(kernels.max_pool2d_index, x, 2, (), 0, 1, False, y) == index.nbytes
    assert workspace(kernels.max_pool2d_backward, y, x, 2) == y.nbytes + 2 * index.nbytes
    assert workspace(kernels.max_pool2d_backward_index, y, index, x.shape, 2) == y.nbytes + index.nbytes
