"""What each algorithm allocates, byte for byte, from the shapes."""

from __future__ import annotations

import pytest
import torch

from tests.treadle.kernels.measured import workspace
from tests.treadle.kernels.shapes import Convolution
from treadle import kernels
from treadle.kernels.convolution_fft import transform_size

CASES = [
    Convolution(3, 8, 16, (13, 15), (3, 3), (1, 1), (0, 0), (1, 1), 1, dtype=torch.float32),
    Convolution(3, 8, 16, (13, 15), (3, 3), (1, 1), (1, 1), (1, 1), 1, dtype=torch.float32),
    Convolution(3, 8, 16, (12, 16), (3, 3), (1, 1), (1, 1), (1, 1), 1, dtype=torch.float32),
    Convolution(2, 32, 4, (14, 14), (3, 3), (1, 1), (2, 2), (1, 1), 1, dtype=torch.float32),
    Convolution(3, 8, 16, (13, 15), (5, 5), (2, 2), (2, 2), (1, 1), 2, dtype=torch.float64),
    Convolution(2, 12, 12, (15, 15), (7, 7), (1, 1), (3, 3), (1, 1), 12, dtype=torch.float32),
    Convolution(2, 16, 32, (9, 9), (1, 1), (1, 1), (0, 0), (1, 1), 1, dtype=torch.float32),
    Convolution(2, 16, 32, (9, 9), (1, 1), (2, 2), (0, 0), (1, 1), 1, dtype=torch.float32),
]


def elements(case: Convolution) -> tuple[int, int, int, int, int]:
    """Elements of image, weight, output, columns and bordered image."""
    x, weight, _, grad = case.tensors()
    height, width = (size + 2 * border for size, border in zip(case.image, case.padding, strict=True))
    columns = x.shape[0] * x.shape[1] * case.kernel[0] * case.kernel[1] * grad[0, 0].numel()
    border = x.shape[0] * x.shape[1] * height * width if any(case.padding) else 0
    return x.numel(), weight.numel(), grad.numel(), columns, border


@pytest.mark.parametrize("case", CASES, ids=str)
def test_im2col(case: Convolution) -> None:
    x, weight, bias, grad = case.tensors()
    image, window, output, columns, border = elements(case)
    numbers, shape, size = case.numbers, list(weight.shape), x.element_size()

    def gradients(algorithm: str) -> list[int]:
        return [
            workspace(kernels.conv2d_weight_gradient, grad, x, shape, False, *numbers, algorithm),
            workspace(kernels.conv2d_input_gradient, grad, weight, list(x.shape), *numbers, algorithm),
        ]

    whole = [workspace(kernels.conv2d_im2col, x, weight, bias, *numbers), *gradients("im2col")]
    assert whole == [
        size * max(border + columns - output, columns, output),
        size * max(border + columns - window, columns + output),
        size * max(columns + output - image, columns),
    ]
    sample = [workspace(kernels.conv2d_im2col_sample, x, weight, bias, *numbers), *gradients("im2col_sample")]
    pointwise = case.kernel == case.stride == (1, 1)
    parts = size * (border + columns) // case.batch, size * columns // case.batch
    assert sample == [0 if pointwise else parts[0], 0 if pointwise else parts[0], parts[1]]


def winograd_elements(
    batch: int, inputs: int, outputs: int, image: tuple[int, int], output: tuple[int, int], padding: tuple[int, int]
) -> int:
    rows, columns = -(-output[0] // 2), -(-output[1] // 2)
    tiles, height, width = batch * rows * columns, 2 * rows + 2, 2 * columns + 2
    border = batch * inputs * height * width if any(padding) or (height, width) != image else 0
    u, v, m = 16 * outputs * inputs, 16 * inputs * tiles, 16 * outputs * tiles
    y = batch * outputs * output[0] * output[1]
    return max(u + v + border + batch * inputs * rows * width - y, u + v + m - y, m)


@pytest.mark.parametrize("case", [case for case in CASES if case.winograd], ids=str)
def test_winograd(case: Convolution) -> None:
    x, weight, bias, grad = case.tensors()
    image, output = case.image, (grad.shape[2], grad.shape[3])
    found = workspace(kernels.conv2d_winograd, x, weight, bias, *case.numbers)
    assert found == 4 * winograd_elements(case.batch, case.inputs, case.outputs, image, output, case.padding)
    found = workspace(kernels.conv2d_input_gradient, grad, weight, list(x.shape), *case.numbers, "winograd")
    back = (2 - case.padding[0], 2 - case.padding[1])
    assert found == 4 * winograd_elements(case.batch, case.outputs, case.inputs, output, image, back)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fft(case: Convolution) -> None:
    x, weight, bias, grad = case.tensors()
    axes = zip(case.image, case.kernel, case.stride, case.padding, case.dilation, strict=True)
    height, width = (transform_size(*axis) for axis in axes)
    plane, waves, size = height * width, 2 * height * (width // 2 + 1), x.element_size()
    a, b, c = (t.shape[0] * t.shape[1] for t in (x, weight, grad))

    def expected(first: int, second: int, third: int, result: int) -> int:
        """Two operands in turn, their product, and its inverse transform, each with its copy in between."""
        made = max(
            max(plane + waves, 2 * waves) * first,
            waves * first + max(plane + waves, 2 * waves) * second,
            waves * (first + second + third),
            2 * waves * third,
            (waves + plane) * third,
        )
        return size * max(made - result, plane * third)

    shape, numbers = list(x.shape), case.numbers
    assert workspace(kernels.conv2d_fft, x, weight, bias, *numbers) == expected(a, b, c, grad.numel())
    found = workspace(kernels.conv2d_weight_gradient, grad, x, list(weight.shape), False, *numbers, "fft")
    assert found == expected(a, c, b, weight.numel())
    found = workspace(kernels.conv2d_input_gradient, grad, weight, shape, *numbers, "fft")
    assert found == expected(c, b, a, x.numel())


def test_one_gradient_makes_no_tensor_of_the_other_size() -> None:
    case = CASES[1]
    x, weight, _, grad = case.tensors()
    assert workspace(kernels.conv2d_input_gradient, grad, weight, list(x.shape), *case.numbers, "direct") == 0
    rest = workspace(kernels.conv2d_weight_gradient, grad, x, list(weight.shape), True, *case.numbers, "direct")
    assert rest == x.element_size()  # the scalar that stands in for the weight
