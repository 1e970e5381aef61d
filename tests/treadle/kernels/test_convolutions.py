"""Every algorithm computes the convolution, and its gradients are those of autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from tests.treadle.kernels.shapes import ALGORITHMS, Convolution, close, convolutions, winograd_convolutions
from treadle import kernels


@given(convolutions())
def test_forward(case: Convolution) -> None:
    x, weight, bias, _ = case.tensors()
    for kernel in (kernels.conv2d_im2col, kernels.conv2d_im2col_sample, kernels.conv2d_fft):
        close(kernel(x, weight, bias, *case.numbers), case.forward(x, weight, bias))
        close(kernel(x, weight, None, *case.numbers), case.forward(x, weight, None))


@given(convolutions())
def test_gradients(case: Convolution) -> None:
    x, weight, _, grad = case.tensors()
    of_input, of_weight, of_bias = case.gradients(grad, x, weight)
    for algorithm in ALGORITHMS:
        args = grad, x, list(weight.shape), True, *case.numbers, algorithm
        found, bias = kernels.conv2d_weight_gradient(*args)
        assert bias is not None
        close(found, of_weight)
        close(bias, of_bias)
        close(kernels.conv2d_input_gradient(grad, weight, list(x.shape), *case.numbers, algorithm), of_input)


@given(winograd_convolutions())
def test_winograd(case: Convolution) -> None:
    x, weight, bias, grad = case.tensors()
    close(kernels.conv2d_winograd(x, weight, bias, *case.numbers), case.forward(x, weight, bias))
    of_input, _, _ = case.gradients(grad, x, weight)
    close(kernels.conv2d_input_gradient(grad, weight, list(x.shape), *case.numbers, "winograd"), of_input)


@given(convolutions())
def test_inputs_stay_and_layout_is_kept(case: Convolution) -> None:
    x, weight, bias, grad = case.tensors()
    before = [tensor.clone() for tensor in (x, weight, bias, grad)]
    results = [
        *(k(x, weight, bias, *case.numbers) for k in (kernels.conv2d_im2col, kernels.conv2d_im2col_sample)),
        kernels.conv2d_fft(x, weight, bias, *case.numbers),
        *(kernels.conv2d_input_gradient(grad, weight, list(x.shape), *case.numbers, a) for a in ALGORITHMS),
    ]
    kernels.conv2d_weight_gradient(grad, x, list(weight.shape), True, *case.numbers, "im2col")
    for tensor, old in zip((x, weight, bias, grad), before, strict=True):
        assert torch.equal(tensor, old)
    layout = torch.channels_last if case.layout == "last" else torch.contiguous_format
    for result in results:
        assert result.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("change", [{"kernel": (3, 1)}, {"stride": (1, 2)}, {"dilation": (2, 2)}, {"groups": 2}])
def test_winograd_refuses_what_it_does_not_compute(change: dict[str, object]) -> None:
    settings: dict[str, object] = {
        "image": (9, 9),
        "kernel": (3, 3),
        "stride": (1, 1),
        "padding": (1, 1),
        "dilation": (1, 1),
        "groups": 1,
    }
    case = Convolution(2, 4, 4, **{**settings, **change})  # type: ignore[arg-type]
    x, weight, bias, _ = case.tensors()
    with pytest.raises(ValueError, match=r"Winograd's F\(2x2, 3x3\) takes kernel 3x3"):
        kernels.conv2d_winograd(x, weight, bias, *case.numbers)
