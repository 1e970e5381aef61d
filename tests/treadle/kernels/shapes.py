"""Random convolutions: everything that ATen's 2d convolution takes, small."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

aten = torch.ops.aten
ALGORITHMS = ("direct", "im2col", "im2col_sample", "fft")


@dataclass(frozen=True)
class Convolution:
    """A convolution and where its tensors lie in memory: `layout` is rows, last (channels last) or strange."""

    batch: int
    inputs: int
    outputs: int
    image: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    layout: str = "rows"
    dtype: torch.dtype = torch.float64

    @property
    def numbers(self) -> tuple[list[int], list[int], list[int], int]:
        return list(self.stride), list(self.padding), list(self.dilation), self.groups

    @property
    def winograd(self) -> bool:
        return self.kernel == (3, 3) and self.stride == self.dilation == (1, 1) and self.groups == 1

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Image, weight, bias and a gradient of the output."""
        x = laid_out(torch.randn(self.batch, self.inputs, *self.image, dtype=self.dtype), self.layout)
        weight = torch.randn(self.outputs, self.inputs // self.groups, *self.kernel, dtype=self.dtype)
        bias = torch.randn(self.outputs, dtype=self.dtype)
        return x, weight, bias, laid_out(torch.randn_like(self.forward(x, weight, bias)), self.layout)

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        stride, padding, dilation, groups = self.numbers
        result: Tensor = aten.convolution(x, weight, bias, stride, padding, dilation, False, [0, 0], groups)
        return result

    def gradients(self, grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """By autograd: of image, weight and bias."""
        leaves = [x.detach().clone().requires_grad_(), weight.clone().requires_grad_()]
        bias = torch.zeros(self.outputs, dtype=self.dtype, requires_grad=True)
        y = self.forward(*leaves, bias)
        first, second, third = torch.autograd.grad(y, [*leaves, bias], grad)
        return first, second, third


def laid_out(x: Tensor, layout: str) -> Tensor:
    """`x` in rows, channels last, or as every other column of a wider tensor."""
    if layout == "last":
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "strange":
        wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    return x


def pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    case = Convolution(
        batch=draw(st.integers(0, 3)),
        inputs=groups * draw(st.integers(1, 3)),
        outputs=groups * draw(st.integers(1, 3)),
        image=draw(pairs(1, 9)),
        kernel=draw(pairs(1, 5)),
        stride=draw(pairs(1, 3)),
        padding=draw(pairs(0, 3)),
        dilation=draw(pairs(1, 2)),
        groups=groups,
        layout=draw(st.sampled_from(["rows", "last", "strange"])),
        dtype=draw(st.sampled_from([torch.float64, torch.float32])),
    )
    fits = [
        max(size, gap * (k - 1) + 1 - 2 * border)
        for size, k, border, gap in zip(case.image, case.kernel, case.padding, case.dilation, strict=True)
    ]
    return replace(case, image=(fits[0], fits[1]))


@st.composite
def winograd_convolutions(draw: st.DrawFn) -> Convolution:
    case = draw(convolutions())
    padding = draw(pairs(0, 2))
    image = tuple(max(size, 3 - 2 * border) for size, border in zip(case.image, padding, strict=True))
    return replace(
        case,
        image=(image[0], image[1]),
        kernel=(3, 3),
        stride=(1, 1),
        dilation=(1, 1),
        padding=padding,
        groups=1,
    )


def close(found: Tensor, expected: Tensor) -> None:
    """Equal within 1e-12 in float64 and 1e-4 in float32 of the largest element."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    tolerance = 1e-12 if found.dtype == torch.float64 else 1e-4
    largest = expected.abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * (1 + largest))
