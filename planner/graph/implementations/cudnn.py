"""cuDNN's convolution algorithms by name, for steps that run on an NVIDIA GPU.

MONeT (section 4.5) chooses among them. They are offered where the conditions hold that cuDNN's reference states for
`cudnnConvolutionForward`, `cudnnConvolutionBackwardData` and `cudnnConvolutionBackwardFilter`; what a device does not
support is left out by a measurement, which also gives times and workspaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.trace import Op, Trace
from treadle.planner.graph.implementations.convolution import Convolution, Direction
from treadle.planner.graph.implementations.index import Index, implementation

ALGORITHMS: dict[Direction, tuple[str, ...]] = {
    "forward": (
        "implicit_gemm",
        "implicit_precomp_gemm",
        "gemm",
        "direct",
        "fft",
        "fft_tiling",
        "winograd",
        "winograd_nonfused",
    ),
    "input": ("algo_0", "algo_1", "fft", "fft_tiling", "winograd", "winograd_nonfused"),
    "weight": ("algo_0", "algo_1", "fft", "algo_3", "winograd", "winograd_nonfused", "fft_tiling"),
}
"""Names in the order of cuDNN's numbers. algo_0, and algo_3 of weights, add up in no fixed order."""


def with_cudnn(trace: Trace) -> Trace:
    """`trace`, made by `with_implementations`, with `cudnn_<algorithm>` for each of its plain 2d convolutions."""
    index = Index(trace)
    return replace(trace, ops=tuple(_with_cudnn(op, index) for op in trace.ops))


def applicable(
    direction: Direction,
    x: Sequence[int],
    weight: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    dtype: str | None,
) -> list[str]:
    """The algorithms for a 2d convolution of `x` [N, C, H, W] by `weight` [K, C / groups, R, S], in cuDNN's order."""
    if dtype not in ("float32", "float64", "float16", "bfloat16"):
        return []
    kernel = tuple(weight[2:])
    unit = set(stride) == {1} and set(dilation) == {1} and dtype in ("float32", "float16")
    covered = all(size > pad for size, pad in zip(kernel, padding, strict=True))
    fits = {
        "direct": False,  # cuDNN names it and does not have it
        "gemm": set(dilation) == {1},
        "fft": unit and covered and all(n + 2 * p <= 256 for n, p in zip(x[2:], padding, strict=True)),
        "fft_tiling": unit and covered and max(kernel) <= 32,
        "winograd": unit and kernel == (3, 3) and direction != "weight",
        "winograd_nonfused": unit and (kernel == (3, 3) or (kernel == (5, 5) and dtype == "float32")),
    }
    return [name for name in ALGORITHMS[direction] if fits.get(name, True)]


def _with_cudnn(op: Op, index: Index) -> Op:
    direction: Direction
    x: Any
    weight: Any
    match op.target, op.args:
        case "aten.convolution.default", (x, weight, bias, *numbers):
            work = Convolution.of(index, x, weight, *numbers)
            if work is None or not work.plain:
                return op
            direction, target = "forward", "treadle.conv2d_cudnn"
            own: tuple[Any, ...] = (x, weight, bias, work.stride, work.padding, work.dilation, work.groups)
        case "treadle.conv2d_input_gradient", (_, weight, x, *_, _):
            direction, target, own = "input", "treadle.conv2d_cudnn_input_gradient", op.args[:-1]
        case "treadle.conv2d_weight_gradient", (_, x, weight, *_, _):
            direction, target, own = "weight", "treadle.conv2d_cudnn_weight_gradient", op.args[:-1]
        case _:
            return op
    shapes = [index.shape(tree) if isinstance(tree, dict) else tree for tree in (x, weight)]
    dtype = index.tensors[op.inputs[0]].dtype
    if shapes[0] is None or shapes[1] is None:
        return op
    stride, padding, dilation = own[-4:-1]
    names = applicable(direction, shapes[0], shapes[1], stride, padding, dilation, dtype)
    more = (implementation(f"cudnn_{name}", "conv", target, op.outputs, (*own, name)) for name in names)
    return replace(op, implementations=(*op.implementations, *more))
