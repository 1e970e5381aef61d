"""Operator calls as data: the argument trees of a trace, to and from the values that PyTorch takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from treadle import kernels
from treadle.planner.documents.trace import Implementation, Op, Trace
from treadle.planner.errors import InputError


def encode(value: Any, tensor_id: Callable[[Any], str | None]) -> Any:
    """The argument tree of `value`; `tensor_id` names a tensor of the trace and returns None for anything else.

    Raises InputError for what a trace cannot hold.
    """
    name = tensor_id(value)
    if name is not None:
        return {"tensor": name}
    if isinstance(value, list | tuple):
        return [encode(item, tensor_id) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    for kind, key in _NAMED.items():
        if isinstance(value, kind):
            return {key: str(value).removeprefix("torch.")}
    raise InputError(f"found an argument of type {type(value).__name__}, expected numbers, words, lists and tensors")


def decode(tree: Any, values: Mapping[str, Any]) -> Any:
    """The value that an argument tree stands for; `values` maps tensor ids to tensors.

    Raises InputError for a tree that names nothing PyTorch knows.
    """
    if isinstance(tree, list | tuple):
        return [decode(item, values) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) != 1:
        raise InputError(f"found an argument {tree!r}, expected one key")
    ((key, name),) = tree.items()
    if key == "tensor":
        return values[name]
    if key == "float":
        return float(name)
    if key == "device":
        return torch.device(name)
    if key in _NAMED.values() and isinstance(getattr(torch, name, None), _kind(key)):
        return getattr(torch, name)
    raise InputError(f"found an argument {tree!r}, expected a tensor, dtype, device, layout, memory format or float")


def call(op: Op | Implementation, values: Mapping[str, Any]) -> list[Tensor | None]:
    """Run `op` on `values` (tensor id to tensor) and return its results, one for each of `op.outputs`.

    Raises InputError for an op without recorded arguments or of an operator that this PyTorch does not have.
    """
    if op.args is None:
        raise InputError(f"op {op.id!r} has no recorded arguments, so it cannot be called")
    result = operator(op.target)(
        *[decode(tree, values) for tree in op.args],
        **{key: decode(tree, values) for key, tree in (op.kwargs or {}).items()},
    )
    return list(result) if isinstance(result, Sequence) else [result] if op.outputs else []


def with_each_call(trace: Trace, change: Callable[[Any], Any]) -> Trace:
    """`trace` with `change` of every op and of every implementation."""
    ops = (replace(change(op), implementations=tuple(map(change, op.implementations))) for op in trace.ops)
    return replace(trace, ops=tuple(ops))


@cache
def operator(target: str) -> Any:
    """What runs a target: the operator overload `namespace.operator.overload`, or of `treadle.NAME` the kernel.

    Raises InputError for an unknown one.
    """
    space, _, name = target.partition(".")
    if space == "treadle":
        if name in kernels.__all__:
            return getattr(kernels, name)
        raise InputError(f"found kernel {target!r}, expected one of treadle.kernels, such as treadle.relu_mask")
    found: Any = torch.ops
    try:
        for part in target.split("."):
            found = getattr(found, part)
    except (AttributeError, RuntimeError):
        found = None
    if not isinstance(found, torch._ops.OpOverload):
        raise InputError(f"found operator {target!r}, expected one that this PyTorch has, such as aten.mm.default")
    return found


_NAMED: dict[type, str] = {
    torch.dtype: "dtype",
    torch.device: "device",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
}


def _kind(key: str) -> type:
    return next(kind for kind, name in _NAMED.items() if name == key)
