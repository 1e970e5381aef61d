"""Which cuDNN algorithms are offered for which convolution."""

from __future__ import annotations

import pytest

from treadle.planner.documents.trace import Costs, Implementation, Op, Tensor, Trace
from treadle.planner.graph.implementations.cudnn import ALGORITHMS, applicable, with_cudnn

IMAGE, SMALL = (8, 16, 56, 56), (32, 16, 3, 3)


def test_the_numbers_are_those_of_cudnn() -> None:
    assert {direction: len(names) for direction, names in ALGORITHMS.items()} == {"forward": 8, "input": 6, "weight": 7}
    assert ALGORITHMS["forward"].index("winograd_nonfused") == 7
    assert ALGORITHMS["weight"].index("fft_tiling") == 6


@pytest.mark.parametrize(
    ("direction", "weight", "stride", "padding", "dilation", "dtype", "expected"),
    [
        ("forward", SMALL, 1, 1, 1, "float32", "igemm pgemm gemm fft fft_tiling winograd winograd_nonfused"),
        ("input", SMALL, 1, 1, 1, "float32", "algo_0 algo_1 fft fft_tiling winograd winograd_nonfused"),
        ("weight", SMALL, 1, 1, 1, "float32", "algo_0 algo_1 fft algo_3 winograd_nonfused fft_tiling"),
        ("forward", SMALL, 2, 1, 1, "float32", "igemm pgemm gemm"),
        ("forward", SMALL, 1, 2, 2, "float32", "igemm pgemm"),
        ("forward", SMALL, 1, 3, 1, "float32", "igemm pgemm gemm winograd winograd_nonfused"),
        ("forward", SMALL, 1, 1, 1, "float64", "igemm pgemm gemm"),
        ("forward", (32, 16, 5, 5), 1, 2, 1, "float32", "igemm pgemm gemm fft fft_tiling winograd_nonfused"),
        ("forward", (32, 16, 5, 5), 1, 2, 1, "float16", "igemm pgemm gemm fft fft_tiling"),
        ("forward", (32, 16, 33, 33), 1, 16, 1, "float32", "igemm pgemm gemm fft"),
        ("forward", SMALL, 1, 1, 1, "int32", ""),
    ],
)
def test_algorithms_by_shape(direction, weight, stride, padding, dilation, dtype, expected) -> None:
    short = {"implicit_gemm": "igemm", "implicit_precomp_gemm": "pgemm"}
    found = applicable(direction, IMAGE, weight, [stride] * 2, [padding] * 2, [dilation] * 2, dtype)
    assert " ".join(short.get(name, name) for name in found) == expected


def test_large_images_are_not_transformed_whole() -> None:
    found = applicable("forward", (1, 3, 255, 255), SMALL, [1, 1], [1, 1], [1, 1], "float32")
    assert "fft" not in found
    assert "fft_tiling" in found


def tensor(name: str, *shape: int) -> Tensor:
    return Tensor(id=name, role="activation", shape=shape, stride=(1,) * len(shape), dtype="float32")


def convolutions(*ops: Op) -> Trace:
    tensors = (tensor("x", 2, 3, 8, 8), tensor("w", 4, 3, 3, 3), tensor("y", 2, 4, 8, 8), tensor("gw", 4, 3, 3, 3))
    return Trace(
        version=1, name="t", mode="train", source="hand", costs=Costs(model="absent"), tensors=tensors, ops=ops
    )


def test_each_direction_gets_calls_of_its_own_arguments() -> None:
    x, w, y = ({"tensor": name} for name in "xwy")
    window = ([1, 1], [1, 1], [1, 1])
    other = Implementation(name="im2col", family="conv", target="treadle.conv2d_im2col")
    forward = Op(
        id="f",
        target="aten.convolution.default",
        phase="forward",
        inputs=("x", "w"),
        outputs=("y",),
        args=(x, w, None, *window, False, [0, 0], 1),
        implementations=(other,),
    )
    weight = Op(
        id="b",
        target="treadle.conv2d_weight_gradient",
        phase="backward",
        inputs=("y", "x"),
        outputs=("gw", None),
        args=(y, x, [4, 3, 3, 3], False, *window, 1, "direct"),
    )
    found_forward, found_weight = with_cudnn(convolutions(forward, weight)).ops
    assert found_forward.implementations[0] == other
    gemm = next(found for found in found_forward.implementations if found.name == "cudnn_gemm")
    assert (gemm.family, gemm.target, gemm.inputs) == ("conv", "treadle.conv2d_cudnn", ("x", "w"))
    assert gemm.args == (x, w, None, *window, 1, "gemm")
    third = next(found for found in found_weight.implementations if found.name == "cudnn_algo_3")
    assert third.target == "treadle.conv2d_cudnn_weight_gradient"
    assert third.args == (y, x, [4, 3, 3, 3], False, *window, 1, "algo_3")
    assert third.outputs == ("gw", None)


def test_transposed_convolutions_stay_as_they_are() -> None:
    x, w = {"tensor": "x"}, {"tensor": "w"}
    args = (x, w, None, [1, 1], [1, 1], [1, 1], True, [0, 0], 1)
    op = Op(id="f", target="aten.convolution.default", phase="forward", inputs=("x", "w"), outputs=("y",), args=args)
    assert with_cudnn(convolutions(op)).ops == (op,)
