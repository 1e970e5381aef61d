"""Batch norm again with kept statistics, and gradients of norms from their output."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.treadle.kernels.measured import workspace
from treadle import kernels

aten = torch.ops.aten


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("channels", [16, 13])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_batch_norm_again_is_the_first_run_bit_for_bit(
    dtype: torch.dtype, layout: torch.memory_format, affine: bool, channels: int
) -> None:
    x = (3 * torch.randn(8, channels, 13, 11) + 1).to(dtype).contiguous(memory_format=layout)
    own = torch.float32 if dtype == torch.bfloat16 else dtype
    weight, bias = (torch.randn(channels, dtype=own), torch.randn(channels, dtype=own)) if affine else (None, None)
    y, mean, deviation = aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    again = kernels.batch_norm_again(x, weight, bias, mean, deviation)
    if mean.dtype == torch.bfloat16:  # rounded after the first run had used it
        torch.testing.assert_close(again, y, rtol=2**-6, atol=2**-6)
    else:
        assert torch.equal(again, y)
    assert again.stride() == y.stride()
    assert again.dtype == y.dtype


@pytest.mark.parametrize("shape", [(8, 16), (8, 16, 9), (4, 16, 5, 6, 7)])
def test_batch_norm_again_of_other_shapes(shape: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(16), torch.randn(16)
    y, mean, deviation = aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    torch.testing.assert_close(kernels.batch_norm_again(x, weight, bias, mean, deviation), y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, True)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_batch_norm_gradient_from_the_output(dtype: torch.dtype, tolerance: float, mask: tuple[bool, ...]) -> None:
    x, weight, bias, grad = norm_inputs((8, 6, 9, 7), (6,), dtype)
    y, mean, deviation = aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    expected = aten.native_batch_norm_backward(grad, x, weight, None, None, mean, deviation, True, 1e-5, list(mask))
    found = kernels.batch_norm_backward_output(grad, y, weight, bias, deviation, mask)
    compare(found, expected, mask, tolerance)


@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, True)])
@pytest.mark.parametrize("inner", [(12,), (5, 12)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_layer_norm_gradient_from_the_output(
    dtype: torch.dtype, tolerance: float, inner: tuple[int, ...], mask: tuple[bool, ...]
) -> None:
    x, weight, bias, grad = norm_inputs((4, 5, 12), inner, dtype)
    y, mean, deviation = aten.native_layer_norm(x, list(inner), weight, bias, 1e-5)
    expected = aten.native_layer_norm_backward(grad, x, list(inner), mean, deviation, weight, bias, list(mask))
    found = kernels.layer_norm_backward_output(grad, y, list(inner), weight, bias, deviation, mask)
    compare(found, expected, mask, tolerance)
    assert workspace(kernels.layer_norm_backward_output, grad, y, list(inner), weight, bias, deviation, mask) < (
        y.nbytes + 3 * deviation.nbytes
    )


def norm_inputs(shape: tuple[int, ...], inner: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Input, weight of both signs and not near 0, bias, and a gradient of the output."""
    sign = torch.where(torch.rand(inner) < 0.3, -1.0, 1.0)
    weight = (sign * (0.2 + torch.rand(inner))).to(dtype)
    assert kernels.safe_to_invert(weight)
    return (
        3 * torch.randn(shape, dtype=dtype) + 1,
        weight,
        torch.randn(inner, dtype=dtype),
        torch.randn(shape, dtype=dtype),
    )


def compare(
    found: tuple[Tensor | None, ...], expected: tuple[Tensor | None, ...], mask: tuple[bool, ...], tolerance: float
) -> None:
    for one, other, wanted in zip(found, expected, mask, strict=True):
        if not wanted:
            assert one is None
            continue
        assert other is not None
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_what_can_be_inverted() -> None:
    one = torch.ones(3)
    assert kernels.safe_to_invert(one)
    assert kernels.safe_to_invert(-one, 100 * one)
    assert not kernels.safe_to_invert(torch.tensor([1.0, 0.0, 1.0]))
    assert not kernels.safe_to_invert(torch.tensor([1.0, 1e-4, 1.0]), one)
    assert kernels.safe_to_invert(torch.tensor([1.0, 1e-4, 1.0]), 1e-3 * one)
    assert not kernels.safe_to_invert(torch.tensor([1.0, torch.nan]))
    assert not kernels.safe_to_invert(torch.tensor([1.0, torch.inf]))


def test_what_passes_as_invertible_loses_at_most_ten_bits() -> None:
    x, bias, grad = torch.randn(16, 4, 8, 8), torch.ones(4), torch.randn(16, 4, 8, 8)
    weight = torch.full((4,), 1 / 1024)
    assert kernels.safe_to_invert(weight, bias)
    y, mean, deviation = aten.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
    exact = aten.native_batch_norm_backward(grad, x, weight, None, None, mean, deviation, True, 1e-5, [True] * 3)
    found = kernels.batch_norm_backward_output(grad, y, weight, bias, deviation, [True] * 3)
    for one, other in zip(found, exact, strict=True):
        assert one is not None
        assert (one - other).abs().max() <= 2**-12 * other.abs().max()


def test_batch_norm_needs_a_few_numbers_for_each_channel() -> None:
    x, channel = torch.randn(4, 8, 10, 10), torch.ones(8)
    assert workspace(kernels.batch_norm_again, x, channel, channel, channel, channel) <= 6 * channel.nbytes
    flags = [True] * 3
    used = workspace(kernels.batch_norm_backward_output, x, x, channel, channel, channel, flags)
    assert used <= 4 * channel.nbytes
