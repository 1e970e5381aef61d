"""The work of convolution algorithms, by formula: what each phase computes and moves.

Elements of the operands: x [N, C, *in], weight [K, C/groups, *window], y [N, K, *out]. Phases run one after the other,
and each reads what it needs and writes what it makes, workspace included.

* direct: one phase over x, weight and y, which keeps nothing.
* im2col: the windows of x as a matrix of N * C * window * out elements, and a matrix product with the weight. The input
  gradient makes the matrix by the product and adds it up. im2col_sample does so one sample at a time.
* winograd: F(2x2, 3x3) of "Fast Algorithms for Convolutional Neural Networks" (section 4.1): 16 products for each tile
  of 2x2 outputs instead of 36, between transforms of 32, 28 and 24 additions for data, weight and output tiles.
* fft: real transforms of the padded planes at 2.5 S log2 S operations each, and one complex matrix product (8
  operations for each multiplication and addition) for each of their frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from treadle.kernels.convolution_fft import transform_size
from treadle.planner.documents.trace import Implementation, Op, Tensor

Direction = Literal["forward", "input", "weight"]


class Phase(NamedTuple):
    """`flops` and `bytes` of one kernel, or of `launches` equal ones that run in turn."""

    kind: Literal["direct", "product", "elementwise"]
    flops: int
    bytes: int
    launches: int = 1
    outputs: int = 0
    """Elements that one launch makes at the same time, where a product needs many of them to fill a device."""


@dataclass(frozen=True)
class ConvolutionCall:
    """One call; `direction` says whether it makes y, the gradient of x or the gradient of the weight."""

    direction: Direction
    algorithm: str
    x: tuple[int, ...]
    weight: tuple[int, ...]
    y: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    itemsize: int

    @property
    def pointwise(self) -> bool:
        """Whether x itself is the matrix of its windows."""
        return math.prod(self.weight[2:]) == 1 and set(self.stride) <= {1} and set(self.padding) <= {0}

    @property
    def multiplications(self) -> int:
        """Multiplications by definition: each weight times each place of the output (of the input if transposed)."""
        return self.x[0] * math.prod((self.x if self.transposed else self.y)[2:]) * math.prod(self.weight)


def convolution_of(op: Op | Implementation, tensors: Mapping[str, Tensor]) -> ConvolutionCall | None:
    """The convolution that `op` computes, by its target and arguments; None for any other operator."""
    args, gradient = list(op.args or ()), _GRADIENTS.get(op.target)
    y: Any
    if gradient == "weight":
        (y, x, weight), at = args[:3], 4
    elif gradient == "input":
        (y, weight, x), at = args[:3], 3
    elif op.target in _FORWARD and op.outputs and op.outputs[0] is not None:
        (x, weight), y, at = args[:2], {"tensor": op.outputs[0]}, 3
    else:
        return None

    def shape(tree: Any) -> tuple[int, ...]:
        return tuple(tensors[tree["tensor"]].shape or ()) if isinstance(tree, dict) else tuple(tree)

    any_kind = ".convolution" in op.target  # of any dimension, transposed or not, by one algorithm
    stride, padding, dilation = map(pair, args[at : at + 3])
    dtype = next(tensors[tree["tensor"]].dtype for tree in (x, weight, y) if isinstance(tree, dict))
    return ConvolutionCall(
        direction=gradient or "forward",
        algorithm=_FORWARD.get(op.target) or ("direct" if any_kind else args[-1]),
        x=shape(x),
        weight=shape(weight),
        y=shape(y),
        stride=stride,
        padding=padding,
        dilation=dilation,
        transposed=any_kind and args[at + 3],
        itemsize=_BYTES.get(dtype or "", 4),
    )


def phases(work: ConvolutionCall) -> list[Phase]:
    """What the algorithm runs, in order."""
    x, weight, y = (math.prod(shape) for shape in (work.x, work.weight, work.y))
    if work.algorithm == "im2col":
        return _im2col(work, x, weight, y, 1)
    if work.algorithm == "im2col_sample":
        return _im2col(work, x, weight, y, work.x[0])
    if work.algorithm == "winograd":
        return _winograd(work, x, weight, y)
    if work.algorithm == "fft":
        return _fft(work, x, weight, y)
    return [Phase("direct", 2 * work.multiplications, (x + weight + y) * work.itemsize)]


def _im2col(work: ConvolutionCall, x: int, weight: int, y: int, parts: int) -> list[Phase]:
    windows = work.x[0] * work.x[1] * math.prod(work.weight[2:]) * math.prod(work.y[2:])
    made, again = {"forward": (y, weight), "input": (windows, weight), "weight": (0, 2 * weight)}[work.direction]
    move = Phase("elementwise", 0, (x + windows) * work.itemsize, parts)
    moved = (windows + y + parts * again) * work.itemsize
    product = Phase("product", 2 * work.multiplications, moved, parts, made // parts)
    if work.pointwise:
        return [product]
    return [product, move] if work.direction == "input" else [move, product]


def _winograd(work: ConvolutionCall, x: int, weight: int, y: int) -> list[Phase]:
    (read, wrote), (rows, columns) = ((y, x), work.x[2:]) if work.direction == "input" else ((x, y), work.y[2:])
    tiles = work.x[0] * -(-rows // 2) * -(-columns // 2)
    inner, outer = (work.y[1], work.x[1]) if work.direction == "input" else (work.x[1], work.y[1])
    data, weights, products = 16 * tiles * inner, 16 * inner * outer, 16 * tiles * outer
    return [
        Phase("elementwise", 28 * inner * outer, (weight + weights) * work.itemsize),
        Phase("elementwise", 32 * tiles * inner, (read + data) * work.itemsize),
        Phase("product", 2 * data * outer, (data + weights + products) * work.itemsize, 1, products),
        Phase("elementwise", 24 * tiles * outer, (products + wrote) * work.itemsize),
    ]


def _fft(work: ConvolutionCall, x: int, weight: int, y: int) -> list[Phase]:
    axes = zip(work.x[2:], work.weight[2:], work.stride, work.padding, work.dilation, strict=True)
    sides = [transform_size(*axis) for axis in axes]
    plane = math.prod(sides)
    frequencies = plane // sides[-1] * (sides[-1] // 2 + 1)
    counts = {"input": work.x[0] * work.x[1], "weight": math.prod(work.weight[:2]), "forward": work.y[0] * work.y[1]}
    sizes = {"input": x, "weight": weight, "forward": y}
    steps = []
    for name, planes in counts.items():
        moved = sizes[name] * work.itemsize + 2 * planes * frequencies * work.itemsize
        steps.append((name, Phase("elementwise", round(2.5 * plane * math.log2(plane)) * planes, moved)))
    outputs = counts[work.direction] * frequencies
    product = Phase(
        "product",
        8 * work.x[0] * math.prod(work.weight[:2]) * frequencies,
        2 * sum(counts.values()) * frequencies * work.itemsize,
        1,
        2 * outputs,
    )
    first = [step for name, step in steps if name != work.direction]
    return [*first, product, *(step for name, step in steps if name == work.direction)]


def pair(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value, value)


_GRADIENTS: dict[str, Direction] = {
    "treadle.conv2d_weight_gradient": "weight",
    "treadle.conv2d_input_gradient": "input",
    "treadle.convolution_weight_gradient": "weight",
    "treadle.convolution_input_gradient": "input",
}
_FORWARD = {"aten.convolution.default": "direct"} | {
    f"treadle.conv2d_{name}": name for name in ("im2col", "im2col_sample", "winograd", "fft")
}
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
