"""Convolutions: backward as two ops, and the algorithms that fit the shape.

The weight gradient reads the input, the input gradient does not (MONeT, section 4.4: the input can be freed between
them). Algorithms exist for plain 2d convolutions of float32 and float64; a pointwise one has no windows to gather.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from msgspec.structs import replace

from treadle.planner.documents.trace import Implementation, Op, Trace
from treadle.planner.graph.implementations.index import Index, implementation, named, substituted, tensor_of

FORWARD = "aten.convolution.default"
BACKWARD = "aten.convolution_backward.default"
READING = "reading"
_HALVES = {
    kind: (f"treadle.conv2d_{kind}_gradient", f"treadle.convolution_{kind}_gradient") for kind in ("weight", "input")
}
FFT_KERNEL = 5
"""A transform pays from this kernel size on."""

Direction = Literal["forward", "weight", "input"]


@dataclass(frozen=True)
class Convolution:
    """The numbers of one convolution, window sizes by dimension."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int
    dtype: str | None

    @staticmethod
    def of(index: Index, x: Any, weight: Any, *numbers: Any) -> Convolution | None:
        """From the arguments of a call; None if the trace lacks the shapes."""
        shape, window = index.shape(x), index.shape(weight)
        if shape is None or window is None or len(shape) != len(window):
            return None
        stride, padding, dilation, transposed, output_padding, groups = numbers
        return Convolution(
            x=shape,
            weight=window,
            stride=_each(stride, window),
            padding=_each(padding, window),
            dilation=_each(dilation, window),
            transposed=transposed,
            output_padding=_each(output_padding, window),
            groups=groups,
            dtype=index.tensors[tensor_of(weight) or ""].dtype,
        )

    @property
    def plain(self) -> bool:
        """Whether the kernels for 2d convolutions compute it."""
        return len(self.weight) == 4 and not self.transposed

    def algorithms(self, direction: Direction) -> list[str]:
        """What computes it besides the framework's own call."""
        kernel = self.weight[2:]
        if not self.plain or self.dtype not in ("float32", "float64") or max(kernel) == 1:
            return []
        found = []
        if self.groups == 1:
            found = ["im2col", "im2col_sample"] if self.x[0] > 1 else ["im2col"]
        unit = self.stride == [1, 1] and self.dilation == [1, 1] and self.groups == 1
        if direction != "weight" and unit and kernel == (3, 3) and (direction == "forward" or max(self.padding) <= 2):
            found.append("winograd")
        if max(kernel) >= FFT_KERNEL:
            found.append("fft")
        return found


def with_convolutions(trace: Trace) -> Trace:
    """`trace` with convolution backward in two ops and with the algorithms of all convolutions."""
    index = Index(trace)
    changed: dict[str, tuple[Op, ...]] = {}
    for op in trace.ops:
        if op.args is None:
            continue
        if op.target == FORWARD:
            variants = _forward(op, index)
            if variants:
                changed[op.id] = (replace(op, implementations=variants),)
        elif op.target == BACKWARD and (halves := _halves(op, index)):
            changed[op.id] = halves
    return substituted(trace, changed)


def _forward(op: Op, index: Index) -> tuple[Implementation, ...]:
    x, weight, bias, *numbers = op.args or ()
    work = Convolution.of(index, x, weight, *numbers)
    if work is None:
        return ()
    args = (x, weight, bias, work.stride, work.padding, work.dilation, work.groups)
    return tuple(
        implementation(name, "conv", f"treadle.conv2d_{name}", op.outputs, args) for name in work.algorithms("forward")
    )


def _halves(op: Op, index: Index) -> tuple[Op, ...]:
    """The weight gradient, which reads the input, and then the input gradient, which does not; those that are wanted.

    Nothing where only the bias has a gradient, or where the shapes are not known.
    """
    grad, x, weight, _, *numbers, mask = op.args or ()
    work = Convolution.of(index, x, weight, *numbers)
    wants_input, wants_weight, wants_bias = mask
    if work is None or (wants_bias and not wants_weight):
        return ()
    of_input, of_weight, of_bias = op.outputs
    halves = []
    if wants_weight:
        args = (grad, x, list(work.weight), wants_bias)
        halves.append(_half(op, work, "weight", args, (of_weight, of_bias), index))
    if wants_input:
        halves.append(_half(op, work, "input", (grad, weight, list(work.x)), (of_input,), index))
    return tuple(halves)


def _half(op: Op, work: Convolution, kind: Literal["weight", "input"], args: Any, outputs: Any, index: Index) -> Op:
    window = (work.stride, work.padding, work.dilation)
    if work.plain:
        target, args = f"treadle.conv2d_{kind}_gradient", (*args, *window, work.groups)
        own: tuple[Any, ...] = (*args, "direct")
    else:
        target = f"treadle.convolution_{kind}_gradient"
        own = (*args, *window, work.transposed, work.output_padding, work.groups)
    return replace(
        op,
        id=index.fresh(f"{op.id}_{kind}"),
        target=target,
        inputs=named(own),
        outputs=outputs,
        args=own,
        kwargs=None,
        implementations=tuple(
            implementation(name, "conv", target, outputs, (*args, name)) for name in work.algorithms(kind)
        ),
    )


def with_reading(trace: Trace) -> Trace:
    """`trace`, as `with_convolutions` leaves it, with the framework's own call for each input gradient as well.

    It asks for the input, of whose values it reads none, and for small or pointwise convolutions it is the faster one
    on a CPU. Only a measurement decides.
    """
    changed = {}
    for before, op in pairwise(trace.ops):
        if before.target in _HALVES["weight"] and op.target in _HALVES["input"]:
            changed[op.id] = (_reading(op, before),)
    return substituted(trace, changed)


def _reading(op: Op, before: Op) -> Op:
    """`op` after the weight gradient `before` of the same convolution."""
    (grad, weight, _, *numbers), (other, x, *_) = op.args or (), before.args or ()
    if other != grad or any(variant.name == READING for variant in op.implementations):
        return op
    if op.target == _HALVES["input"][0]:
        stride, padding, dilation, groups, _ = numbers
        numbers = [stride, padding, dilation, False, [0] * len(stride), groups]
    args = (grad, x, weight, None, *numbers, [True, False, False])
    own = implementation(READING, "conv", BACKWARD, (*op.outputs, None, None), args)
    return replace(op, implementations=(*op.implementations, own))


def _each(numbers: list[int], window: tuple[int, ...]) -> list[int]:
    """One number for each dimension of the window; a single one holds for all."""
    return list(numbers) * (len(window) - 2) if len(numbers) == 1 else list(numbers)
