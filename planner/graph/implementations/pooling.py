"""Max pooling: values only, and its backward by the input or by a one-byte place in the window (MONeT, section 4.4)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.trace import Implementation, Op, Tensor, Trace
from treadle.planner.graph.implementations.index import (
    Index,
    byte_tensor,
    implementation,
    named,
    optional_op,
    substituted,
    tensor,
    tensor_of,
)

FORWARD = "aten.max_pool2d_with_indices.default"
BACKWARD = "aten.max_pool2d_with_indices_backward.default"
CELLS = 256
"""Largest window whose positions fit one byte."""


def with_pooling(trace: Trace) -> Trace:
    """`trace` with pooling that emits no index where nothing but its own backward reads that index.

    The backward reads the input, or as an alternative the place of each maximum in its window, which an optional op
    finds in the forward pass.
    """
    index = Index(trace)
    changed: dict[str, tuple[Op, ...]] = {}
    added: list[Tensor] = []
    removed: set[str] = set()
    for op in trace.ops:
        if op.target != FORWARD or op.args is None or op.kwargs or None in op.outputs or len(op.outputs) != 2:
            continue
        values, places = (str(name) for name in op.outputs)
        backward = [trace.ops[place] for place in index.readers.get(places, [])]
        if places in index.held or not all(_is_backward(other, places) for other in backward):
            continue
        x, numbers = op.args[0], _numbers(op.args)
        removed.add(places)
        changed[op.id] = (
            replace(op, target="treadle.max_pool2d", outputs=(values,), args=(x, *numbers), inputs=named([x])),
        )
        shape = index.shape(tensor(values))
        small = shape is not None and numbers[0][0] * numbers[0][1] <= CELLS and index.shape(x) is not None
        found = index.fresh(f"{op.id}_index") if small and backward else None
        if found is not None:
            args = (x, *numbers, tensor(values))
            changed[op.id] += (optional_op(found, "treadle.max_pool2d_index", found, args, op.id),)
            added.append(byte_tensor(found, shape or ()))
        for other in backward:
            changed[other.id] = (_backward(other, numbers, found, index),)
    return substituted(trace, changed, added, removed)


def _is_backward(op: Op, places: str) -> bool:
    return op.target == BACKWARD and op.args is not None and tensor_of(op.args[7]) == places


def _backward(op: Op, numbers: list[Any], places: str | None, index: Index) -> Op:
    grad, x = (op.args or ())[:2]
    variants: tuple[Implementation, ...] = ()
    if places is not None:
        args = (grad, tensor(places), list(index.shape(x) or ()), *numbers)
        variants = (implementation("index", "int", "treadle.max_pool2d_backward_index", op.outputs, args),)
    own = (grad, x, *numbers)
    return replace(op, target="treadle.max_pool2d_backward", inputs=named(own), args=own, implementations=variants)


def _numbers(args: tuple[Any, ...]) -> list[Any]:
    """Kernel, stride, padding, dilation and ceil mode, with the operator's defaults and two numbers each."""
    defaults: tuple[Any, ...] = ([], 0, 1, False)
    kernel, stride, padding, dilation, ceil = (*args[1:], *defaults[len(args) - 2 :])
    return [_pair(kernel), _pair(stride or kernel), _pair(padding), _pair(dilation), ceil]


def _pair(value: int | list[int]) -> list[int]:
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * 2 if len(numbers) == 1 else numbers
