"""The split gradients of convolutions of any kind are those of ATen's whole backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treadle import kernels

aten = torch.ops.aten


@st.composite
def settings(draw: st.DrawFn) -> tuple[int, Any]:
    """Number of dimensions and (image, weight, stride, padding, dilation, transposed, output padding, groups)."""
    dims = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 2]))
    transposed = draw(st.booleans())

    def each(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=dims, max_size=dims))

    kernel, stride, padding, dilation = each(1, 3), each(1, 3), each(0, 1), each(1, 3)
    inputs, outputs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    channels = [inputs, outputs // groups] if transposed else [outputs, inputs // groups]
    image = [7 + extra for extra in each(0, 2)]
    rest = [draw(st.integers(0, max(s, d) - 1)) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    shape = [draw(st.integers(1, 2)), inputs, *image]
    return outputs, (shape, [*channels, *kernel], stride, padding, dilation, transposed, rest, groups)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(case=settings())
def test_split_gradients(dtype: torch.dtype, case: tuple[int, Any]) -> None:
    outputs, (image, window, *numbers) = case
    x, weight = torch.randn(image, dtype=dtype), torch.randn(window, dtype=dtype)
    grad = torch.randn_like(aten.convolution(x, weight, None, *numbers))
    expected = aten.convolution_backward(grad, x, weight, [outputs], *numbers, [True, True, True])
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    found = kernels.convolution_input_gradient(grad, weight, image, *numbers)
    torch.testing.assert_close(found, expected[0], **tolerance)
    of_weight, of_bias = kernels.convolution_weight_gradient(grad, x, window, True, *numbers)
    torch.testing.assert_close(of_weight, expected[1], **tolerance)
    torch.testing.assert_close(of_bias, expected[2], **tolerance)
    assert kernels.convolution_weight_gradient(grad, x, window, False, *numbers)[1] is None


@pytest.mark.parametrize("groups", [1, 32])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_bit_for_bit_on_ordinary_layers(groups: int, stride: int, layout: torch.memory_format) -> None:
    numbers = [stride, stride], [1, 1], [1, 1], False, [0, 0], groups
    x = torch.randn(4, 32, 14, 14).contiguous(memory_format=layout)
    weight = torch.randn(32, 32 // groups, 3, 3)
    grad = torch.randn_like(aten.convolution(x, weight, None, *numbers)).contiguous(memory_format=layout)
    whole = aten.convolution_backward(grad, x, weight, [32], *numbers, [True, True, True])
    assert torch.equal(kernels.convolution_input_gradient(grad, weight, x.shape, *numbers), whole[0])
    of_weight, of_bias = kernels.convolution_weight_gradient(grad, x, weight.shape, True, *numbers)
    assert torch.equal(of_weight, whole[1])
    assert torch.equal(of_bias, whole[2])
