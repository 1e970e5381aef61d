"""Backward of ReLU and HardTanh by their input, their output, or for ReLU one bit for each element (MONeT, 4.4)."""

from __future__ import annotations

import math

from msgspec.structs import replace

from treadle.planner.documents.trace import Op, Tensor, Trace
from treadle.planner.graph.implementations.index import (
    Index,
    byte_tensor,
    implementation,
    optional_op,
    substituted,
    tensor,
    tensor_of,
)

RELU = "aten.relu.default"
RELU_BACKWARD = "aten.threshold_backward.default"
HARDTANH = "aten.hardtanh.default"
HARDTANH_BACKWARD = "aten.hardtanh_backward.default"


def with_activations(trace: Trace) -> Trace:
    """`trace` with other implementations of the backward of ReLU, ReLU6 and HardTanh.

    All of them give the same bits: the input of ReLU has the sign of its output, and HardTanh's
    output is at its bounds exactly where the input is at or beyond them.
    """
    index = Index(trace)
    changed: dict[str, tuple[Op, ...]] = {}
    added: list[Tensor] = []
    masks: dict[str, str] = {}
    clamps = {
        _clamp(op): op for op in trace.ops if op.target == HARDTANH and op.phase == "forward" and op.args is not None
    }
    for op in trace.ops:
        if op.args is None or op.phase != "backward":
            continue
        if op.target == RELU_BACKWARD:
            relu = index.makes(op.args[1], RELU)
            if relu is None or op.args[2] != 0:
                continue
            if relu.id not in masks and (mask := _mask(relu, index)) is not None:
                masks[relu.id] = mask.id
                added.append(mask)
                args = (tensor(str(relu.outputs[0])),)
                changed[relu.id] = (relu, optional_op(mask.id, "treadle.relu_mask", mask.id, args, relu.id))
            changed[op.id] = (_relu_backward(op, relu, masks.get(relu.id)),)
        elif op.target == HARDTANH_BACKWARD and (clamp := clamps.get(_clamp(op, 1))) is not None:
            grad, _, *bounds = op.args
            args = (grad, tensor(str(clamp.outputs[0])), *bounds)
            variant = implementation("output", "out", HARDTANH_BACKWARD, op.outputs, args)
            changed[op.id] = (replace(op, implementations=(variant,)),)
    return substituted(trace, changed, added)


def _relu_backward(op: Op, relu: Op, mask: str | None) -> Op:
    grad, _, threshold = op.args or ()
    x = (relu.args or ())[0]
    variants = [implementation("input", "", RELU_BACKWARD, op.outputs, (grad, x, threshold))]
    if mask is not None:
        variants.append(implementation("mask", "int", "treadle.relu_backward_mask", op.outputs, (grad, tensor(mask))))
    return replace(op, family="out", implementations=tuple(variants))


def _mask(relu: Op, index: Index) -> Tensor | None:
    """One bit for each element of what `relu` makes."""
    shape = index.tensors[str(relu.outputs[0])].shape
    return None if shape is None else byte_tensor(index.fresh(f"{relu.id}_mask"), (-(-math.prod(shape) // 8),))


def _clamp(op: Op, place: int = 0) -> tuple[object, ...]:
    """What distinguishes one clamp from another: its input and its bounds, defaults included."""
    x, *bounds = (op.args or ())[place:]
    return (tensor_of(x), *bounds, *(-1.0, 1.0)[len(bounds) :])
