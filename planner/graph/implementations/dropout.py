"""Dropout backward by the mask, by its bits packed into bytes, or by drawing the mask again (MONeT, section 4.4).

The mask takes a byte for each element, packed an eighth of that. The generator's state from right before the dropout
takes a few KB whatever the size. It cannot be had in a later stage, so the op that notes it belongs to the op that
makes the dropout's input and never runs again. The mask is drawn in the order of the input's memory, so the gradient
must lie in memory as the input does.
"""

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

FORWARD = "aten.native_dropout.default"
BACKWARD = "aten.native_dropout_backward.default"
STATE = "treadle.rng_state"
STATE_BYTES = 5056
"""Bytes of the CPU generator's state; that of a CUDA device takes 16."""


def with_dropout(trace: Trace) -> Trace:
    """`trace` with packed masks and with masks that are drawn again."""
    index = Index(trace)
    changed: dict[str, tuple[Op, ...]] = {}
    added: list[Tensor] = []
    made = {op.outputs[1]: op for op in trace.ops if op.target == FORWARD and op.args is not None and op.random}
    for op in trace.ops:
        first = made.get(tensor_of(op.args[1])) if op.target == BACKWARD and op.args is not None else None
        if first is None or first.id in changed or first.outputs[1] is None:
            continue
        grad, mask, scale = op.args or ()
        x, p, _ = first.args or ()
        variants = []
        ops = [first]
        shape = index.shape(mask)
        strides = {index.tensors[str(tensor_of(tree))].stride for tree in (grad, x)}
        if shape is not None:
            packed = index.fresh(f"{first.id}_packed")
            added.append(byte_tensor(packed, (-(-math.prod(shape) // 8),)))
            ops.append(optional_op(packed, "treadle.dropout_mask_pack", packed, (mask,), first.id))
            args = (grad, tensor(packed), scale)
            variants.append(implementation("packed", "int", "treadle.dropout_backward_packed", op.outputs, args))
        source = index.producer.get(index.owner[str(tensor_of(x))])
        if source is not None and None not in strides and len(strides) == 1:
            state = index.fresh(f"{first.id}_state")
            added.append(byte_tensor(state, (STATE_BYTES,)))
            ops.insert(0, optional_op(state, STATE, state, (x,), source.id))
            args = (grad, tensor(state), p)
            variants.append(implementation("again", "rng", "treadle.dropout_backward_rng", op.outputs, args))
        if variants:
            changed |= {first.id: tuple(ops), op.id: (replace(op, implementations=tuple(variants)),)}
    return substituted(trace, changed, added)
