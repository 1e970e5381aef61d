"""Dropout's gradient from one bit for each element, and from the generator's state."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.treadle.kernels.measured import workspace
from tests.treadle.kernels.shapes import laid_out
from treadle import kernels
from treadle.kernels import bits

aten = torch.ops.aten

layouts = st.sampled_from(["rows", "last"])
shapes = st.lists(st.integers(0, 5), min_size=4, max_size=4)


@given(shapes, layouts, layouts, st.sampled_from([0.1, 0.5, 0.9]))
def test_packed_mask(shape: list[int], first: str, second: str, p: float) -> None:
    x, grad = laid_out(torch.randn(shape), first), laid_out(torch.randn(shape), second)
    _, mask = aten.native_dropout(x, p, True)
    scale = 1 / (1 - p)
    packed = kernels.dropout_mask_pack(mask)
    assert packed.numel() == (x.numel() + 7) // 8
    expected = aten.native_dropout_backward(grad, mask, scale)
    assert torch.equal(kernels.dropout_backward_packed(grad, packed, scale), expected)


@given(shapes, layouts, layouts, st.sampled_from([0.1, 0.5, 1.0]))
def test_mask_drawn_again(shape: list[int], first: str, second: str, p: float) -> None:
    x, grad = laid_out(torch.randn(shape), first), laid_out(torch.randn(shape), second)
    state = kernels.rng_state(x)
    _, mask = aten.native_dropout(x, p, True)
    torch.rand(7)
    now = torch.get_rng_state()
    found = kernels.dropout_backward_rng(grad, state, p, x.stride())
    expected = aten.native_dropout_backward(grad, mask, 0.0 if p == 1 else 1 / (1 - p))
    assert torch.equal(found, expected)
    assert torch.equal(torch.get_rng_state(), now)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types(dtype: torch.dtype) -> None:
    x = torch.randn(100, dtype=dtype)
    state = kernels.rng_state(x)
    _, mask = aten.native_dropout(x, 0.3, True)
    expected = aten.native_dropout_backward(x, mask, 1 / 0.7)
    assert torch.equal(kernels.dropout_backward_packed(x, kernels.dropout_mask_pack(mask), 1 / 0.7), expected)
    assert torch.equal(kernels.dropout_backward_rng(x, state, 0.3), expected)


def test_workspace() -> None:
    x = torch.randn(2 * bits.BLOCK)
    mask = x > 0
    packed = kernels.dropout_mask_pack(mask)
    assert workspace(kernels.dropout_mask_pack, mask) == bits.BLOCK
    assert workspace(kernels.dropout_backward_packed, x, packed, 2.0) == bits.BLOCK * (1 + x.element_size())
    used = workspace(kernels.dropout_backward_rng, x, kernels.rng_state(x), 0.5)
    assert x.numel() <= used <= x.numel() + 2 * 5056
