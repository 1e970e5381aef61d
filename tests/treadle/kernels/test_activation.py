"""Gradients of activations are ATen's bit for bit, from a mask, from the output, and in place."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.treadle.kernels.measured import workspace
from tests.treadle.kernels.shapes import laid_out
from treadle import kernels
from treadle.kernels import bits

aten = torch.ops.aten


def tricky(shape: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers, with zeros of both signs, infinities and NaN among them."""
    odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 6.0])
    x = 4 * torch.randn(shape)
    where = torch.randint(0, 3 * len(odd), shape)
    return torch.where(where < len(odd), odd[where % len(odd)], x).to(dtype)


def same(found: Tensor, expected: Tensor) -> bool:
    """Whether the bits are equal, NaN counting as one value."""
    return found.dtype == expected.dtype and torch.equal(found.nan_to_num(nan=12345), expected.nan_to_num(nan=12345))


tensors = st.tuples(
    st.lists(st.integers(0, 5), min_size=4, max_size=4),
    st.sampled_from(["rows", "last", "strange"]),
    st.sampled_from(["rows", "last", "strange"]),
)


@given(tensors, st.sampled_from([8, 64, bits.BLOCK]))
def test_relu_from_its_mask(case: tuple[list[int], str, str], block: int) -> None:
    with patch.object(bits, "BLOCK", block):
        relu_from_its_mask(*case)


def relu_from_its_mask(shape: list[int], first: str, second: str) -> None:
    x, grad = laid_out(tricky(shape), first), laid_out(tricky(shape), second)
    expected = aten.threshold_backward(grad, x, 0)
    y = x.relu()
    mask = kernels.relu_mask(y)
    assert (mask.dtype, mask.shape) == (torch.uint8, ((x.numel() + 7) // 8,))
    assert torch.equal(mask, kernels.relu_mask(x))
    assert same(kernels.relu_backward_mask(grad, mask), expected)
    written = grad.clone()
    assert kernels.relu_backward_mask_(written, mask) is written
    assert same(written, expected)
    written = grad.clone()
    assert kernels.threshold_backward_(written, y, 0) is written
    assert same(written, expected)


def test_mask_has_the_first_element_in_the_lowest_bit() -> None:
    y = torch.tensor([1.0, 0, 0, 2, 0, 0, 0, 0, 0, 3])
    assert kernels.relu_mask(y).tolist() == [0b1001, 0b10]
    assert kernels.relu_mask(torch.ones(2, 2, 3)).tolist() == [255, 15]


@given(case=tensors)
def test_hardtanh_from_its_output(case: tuple[list[int], str, str]) -> None:
    shape, first, second = case
    x, grad = laid_out(tricky(shape).nan_to_num(1.0), first), laid_out(tricky(shape), second)
    y, expected = aten.hardtanh(x, 0.0, 6.0), aten.hardtanh_backward(grad, x, 0.0, 6.0)
    assert same(kernels.hardtanh_backward_output(grad, y, 0.0, 6.0), expected)
    written = grad.clone()
    assert kernels.hardtanh_backward_(written, y, 0.0, 6.0) is written
    assert same(written, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types(dtype: torch.dtype) -> None:
    x, grad = tricky([3, 37], dtype), tricky([3, 37], dtype)
    assert same(kernels.relu_backward_mask(grad, kernels.relu_mask(x)), aten.threshold_backward(grad, x, 0))


def test_workspace_stays_small() -> None:
    small, large = torch.randn(1000), torch.randn(3 * bits.BLOCK)
    for x, flags in ((small, 1000), (large, bits.BLOCK)):
        mask = kernels.relu_mask(x)
        assert workspace(kernels.relu_mask, x) == flags
        assert workspace(kernels.relu_backward_mask, x, mask) == flags * (1 + x.element_size())
        assert workspace(kernels.relu_backward_mask_, x.clone(), mask) == flags * (1 + x.element_size())
        assert workspace(kernels.threshold_backward_, x.clone(), x, 0.0) == 0
    last = laid_out(torch.randn(4, 3, 10, 10), "last")
    assert workspace(kernels.relu_mask, last) == last.numel()
    assert workspace(kernels.relu_backward_mask_, last, kernels.relu_mask(last)) == last.numel() + last.nbytes
