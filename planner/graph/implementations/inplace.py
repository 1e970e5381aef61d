"""Calls that write their result where an argument lies (MONeT, section 4.3.5 and equations 4.10, 4.11).

In the forward pass an op may overwrite what a forward op made, what no later forward op reads through any view, and
what the caller of the step does not hold. In the backward pass it may overwrite the incoming gradient on the same
terms. The result must have the size and layout of what it overwrites.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from treadle.planner.documents.trace import Call, Implementation, Op, Trace
from treadle.planner.graph.implementations.index import (
    Index,
    implementation,
    named,
    substituted,
    tensor_of,
)

FORWARD = {
    f"aten.{name}.default": f"aten.{name}_.default" for name in ("relu", "hardtanh", "sigmoid", "tanh", "leaky_relu")
}
"""What works element by element on its first argument."""
INFERENCE = FORWARD | {
    f"aten.{name}.default": f"aten.{name}_.default"
    for name in ("silu", "gelu", "elu", "mish", "hardswish", "hardsigmoid")
}
"""The same where nothing runs backward, whose gradients would read what these overwrite."""
ADD, ADD_INPLACE = "aten.add.Tensor", "aten.add_.Tensor"
BACKWARD = {
    "aten.threshold_backward.default": "treadle.threshold_backward_",
    "treadle.relu_backward_mask": "treadle.relu_backward_mask_",
    "aten.hardtanh_backward.default": "treadle.hardtanh_backward_",
}
"""What writes into its first argument, the incoming gradient. A sum of gradients may write into either of them."""


def with_inplace(trace: Trace) -> Trace:
    """`trace` with in-place forms of the forward ops that may overwrite an input and of the backward ops that may
    overwrite the incoming gradient."""
    index = Index(trace)
    changed: dict[str, tuple[Op, ...]] = {}
    for place, op in enumerate(trace.ops):
        if op.args is None or len(op.outputs) != 1 or op.outputs[0] is None or op.intermediate_of is not None:
            continue
        found = _forward(op, place, index) if op.phase == "forward" else list(_backward(op, place, index))
        if found:
            changed[op.id] = (replace(op, implementations=(*op.implementations, *found)),)
    return substituted(trace, changed)


def may_overwrite(op: Op, place: int, name: str, index: Index) -> bool:
    """Whether the first result of `op`, the op at `place`, may take over the memory of tensor `name`."""
    old, new = index.tensors[name], index.tensors[str(op.outputs[0])]
    storage = index.owner[name]
    maker = index.producer.get(storage)
    layout = (old.shape, old.stride, old.dtype, old.bytes)
    if None in layout or layout != (new.shape, new.stride, new.dtype, new.bytes) or new.alias_of is not None:
        return False
    if maker is None or maker.phase != op.phase or maker.intermediate_of is not None or storage in index.held:
        return False
    owner = index.tensors[storage]
    if (owner.storage_bytes or owner.bytes) != old.bytes or new.storage_bytes is not None:
        return False
    later = (index.trace.ops[reader] for reader in index.readers[storage] if reader > place)
    return all(reader.phase != op.phase for reader in later)


def _forward(op: Op, place: int, index: Index) -> list[Implementation]:
    """At most one: a plan has one tensor that an op may overwrite. Of two summands it is the one that fewer backward
    ops have to read."""
    args = op.args or ()
    if op.outputs[0] in index.held:
        return []
    element_wise = FORWARD if index.trace.mode == "train" else INFERENCE
    orders = [args] if op.target in element_wise else _orders(op)
    able = [order for order in orders if _owns(order[0], index) and _overwrites(op, place, order, index)]
    if not able:
        return []
    chosen = min(able, key=lambda order: _late_reads(tensor_of(order[0]), index))
    return [_inplace(op, "inplace", "inplace", element_wise.get(op.target, ADD_INPLACE), chosen)]


def _backward(op: Op, place: int, index: Index) -> Iterator[Implementation]:
    for order in _orders(op):
        if _overwrites(op, place, order, index):
            yield _inplace(op, "inplace", "grad-inplace", ADD_INPLACE, order)
            return
    for call in op.variants:
        if call.target in BACKWARD and call.args and _overwrites(op, place, call.args, index):
            name = f"{call.name}-inplace" if isinstance(call, Implementation) else "inplace"
            family = "+".join((*filter(None, [call.family]), "grad-inplace"))
            yield _inplace(call, name, family, BACKWARD[call.target], call.args)


def _orders(op: Op) -> list[tuple[Any, ...]]:
    """The summands of a sum in the orders in which they may be added up; nothing for another op."""
    args = op.args or ()
    if op.target != ADD or len(args) != 2:
        return []
    return [args] if op.kwargs or tensor_of(args[1]) is None else [args, args[::-1]]


def _overwrites(op: Op, place: int, args: tuple[Any, ...], index: Index) -> bool:
    """Whether the first argument may be overwritten, which no other argument may share memory with."""
    name = tensor_of(args[0])
    others = {index.owner[other] for other in named(args[1:])}
    return name is not None and index.owner[name] not in others and may_overwrite(op, place, name, index)


def _inplace(call: Call, name: str, family: str, target: str, args: tuple[Any, ...]) -> Implementation:
    overwritten = tensor_of(args[0])
    return implementation(name, family, target, call.outputs, args, kwargs=call.kwargs or {}, overwrites=overwritten)


def _owns(tree: object, index: Index) -> bool:
    name = tensor_of(tree)
    return name is not None and index.tensors[name].alias_of is None


def _late_reads(name: str | None, index: Index) -> tuple[int, int]:
    """How many backward ops have to read the storage, and how many may."""
    storage = index.owner[name or ""]
    ops = [index.trace.ops[place] for place in index.readers[storage]]
    late = [op for op in ops if op.phase == "backward"]
    must = [op for op in late if all(_reads(call, storage, index) for call in op.variants)]
    return len(must), len(late)


def _reads(call: Call, storage: str, index: Index) -> bool:
    return any(index.owner[tensor] == storage for tensor in call.inputs)
