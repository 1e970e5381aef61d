"""The work of each call of a captured trace, counted from its shapes.

FLOPs count multiplications and additions of matrix products, convolutions and attention (the formulas of
`torch.utils.flop_counter`, and those of `convolution` for its algorithms); of every other operator they stay absent.
Bytes moved read each input once and write each output once; a lookup reads as much as it returns, and a view moves
nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from msgspec.structs import replace
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from treadle.capture.costs.convolution import convolution_of, phases
from treadle.capture.operator_calls import decode, operator, with_each_call
from treadle.planner.documents.trace import Implementation, Op, Tensor, Trace
from treadle.planner.errors import InputError


def with_counts(trace: Trace) -> Trace:
    """`trace` with `flops` and `bytes_moved` of every op and of its implementations.

    Raises InputError for ops without recorded arguments.
    """
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    shadows = shadows_of(trace.tensors)

    def counted(op: Any) -> Any:
        if isinstance(op, Op) and is_view(op, tensors):
            return replace(op, flops=0, bytes_moved=0)
        convolution = convolution_of(op, tensors) if op.target.startswith("treadle.") else None
        if convolution is None:
            return replace(op, flops=_flops(op, shadows), bytes_moved=_bytes_moved(op, tensors))
        steps = phases(convolution)
        return replace(op, flops=sum(step.flops for step in steps), bytes_moved=sum(step.bytes for step in steps))

    return with_each_call(trace, counted)


def shadows_of(tensors: Iterable[Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of the same layout, without memory, by id."""
    return {
        tensor.id: torch.empty_strided(*layout_of(tensor), dtype=dtype_of(tensor), device="meta") for tensor in tensors
    }


def is_view(op: Op, tensors: Mapping[str, Tensor]) -> bool:
    """Whether every result of `op` lies in the storage of an earlier tensor, which it leaves unchanged."""
    results = [tensors[key] for key in op.outputs if key is not None]
    return bool(results) and not op.mutates and all(tensor.alias_of is not None for tensor in results)


def layout_of(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and stride. Raises InputError where the trace has none."""
    if tensor.shape is None or tensor.stride is None:
        raise InputError(f"tensor {tensor.id!r} has no shape and stride; only captured traces can be counted")
    return tensor.shape, tensor.stride


def dtype_of(tensor: Tensor) -> torch.dtype:
    dtype = decode({"dtype": tensor.dtype}, {})
    assert isinstance(dtype, torch.dtype)
    return dtype


def signature(op: Op | Implementation, tensors: Mapping[str, Tensor]) -> str:
    """One text for all calls of the same target with the same numbers on tensors of the same layout."""

    def shaped(tree: Any) -> Any:
        if isinstance(tree, list | tuple):
            return [shaped(item) for item in tree]
        if isinstance(tree, dict) and "tensor" in tree:
            tensor = tensors[tree["tensor"]]
            return [tensor.dtype, *layout_of(tensor)]
        return tree

    return json.dumps(
        [op.target, shaped(op.args), {k: shaped(v) for k, v in (op.kwargs or {}).items()}], sort_keys=True
    )


_ATTENTION: dict[str, tuple[Callable[..., Any], int]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (sdpa_flop_count, 3),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (sdpa_backward_flop_count, 4),
}
"""Attention that PyTorch's registry lacks: a formula, and the number of leading arguments whose shapes it takes."""


def _flops(op: Op | Implementation, shadows: Mapping[str, torch.Tensor]) -> int | None:
    if op.args is None:
        raise InputError(f"op {op.id!r} has no recorded arguments; only captured traces can be counted")
    if op.target.startswith("treadle."):
        return None
    if op.target in _ATTENTION:
        formula, count = _ATTENTION[op.target]
        return int(formula(*(decode(tree, shadows).shape for tree in op.args[:count])))
    registered = flop_registry.get(operator(op.target).overloadpacket)
    if registered is None:
        return None
    results = [shadows[key] if key is not None else None for key in op.outputs]
    arguments = [decode(tree, shadows) for tree in op.args]
    named = {key: decode(tree, shadows) for key, tree in (op.kwargs or {}).items()}
    return int(registered(*arguments, **named, out_val=results[0] if len(results) == 1 else tuple(results)))


_LOOKUPS = ("aten.embedding.", "aten.index.", "aten.gather.", "aten.index_select.")
_READS_NOTHING = ("aten.zeros_like.", "aten.ones_like.", "aten.full_like.", "aten.empty_like.", "aten.new_")


def _bytes_moved(op: Op | Implementation, tensors: Mapping[str, Tensor]) -> int:
    mutated = op.mutates if isinstance(op, Op) else ()
    written = sum(_touched(tensors[key], tensors) for key in (*op.outputs, *mutated) if key is not None)
    if op.target.startswith(_READS_NOTHING):
        return written
    read = [_touched(tensors[key], tensors) for key in op.inputs]
    if op.target.startswith(_LOOKUPS):
        read[0] = min(read[0], written)
    return written + sum(read)


def _touched(tensor: Tensor, tensors: Mapping[str, Tensor]) -> int:
    """Bytes behind the tensor's elements: an expanded one is smaller in memory than it looks."""
    shape, stride = layout_of(tensor)
    distinct = math.prod(size for size, step in zip(shape, stride, strict=True) if step or size == 0)
    return distinct * dtype_of(tensor).itemsize
