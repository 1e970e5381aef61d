"""Linear layers: the product that reads the layer's input before the one that does not (MONeT, section 4.4).

PyTorch computes the input gradient first, and so holds it in addition to the layer's input while it computes the weight
gradient. In the opposite order the input is free before the input gradient is made.
"""

from __future__ import annotations

from msgspec.structs import replace

from treadle.planner.documents.trace import Op, Trace
from treadle.planner.graph.implementations.index import Index

PRODUCT = "aten.mm.default"


def with_linear(trace: Trace) -> Trace:
    """`trace` with weight gradients of linear layers in front of their input gradients."""
    index = Index(trace)
    early = {tensor for op in trace.ops if op.phase == "forward" for tensor in op.outputs if tensor is not None}

    def reads_forward(op: Op) -> bool:
        return any(index.owner[tensor] in early for tensor in op.inputs)

    def is_view(op: Op) -> bool:
        return all(tensor is not None and index.tensors[tensor].alias_of is not None for tensor in op.outputs)

    ops = list(trace.ops)
    for place, first in enumerate(trace.ops):
        if first.target != PRODUCT or first.phase != "backward" or reads_forward(first):
            continue
        end = place + 1
        while end < len(ops) and ops[end].phase == "backward" and is_view(ops[end]):
            end += 1
        if end == len(ops) or ops[end].target != PRODUCT or not reads_forward(ops[end]):
            continue
        between = ops[place : end + 1]
        behind: list[Op] = []
        made: set[str | None] = set()
        waiting: set[str] = set()
        for op in between:
            if op is first or not made.isdisjoint(op.inputs) or not waiting.isdisjoint(op.after):
                behind.append(op)
                made.update(op.outputs)
                waiting.add(op.id)
        second = ops[end]
        shared = {index.owner[tensor] for tensor in first.inputs} & {index.owner[tensor] for tensor in second.inputs}
        if second not in behind and shared:
            ops[place : end + 1] = [op for op in between if op not in behind] + behind
    return replace(trace, ops=tuple(ops)) if tuple(ops) != trace.ops else trace
