"""Packing gradients into messages, in the order in which the backward pass makes them ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.planner.documents.trace import Trace
from treadle.planner.errors import InputError


@dataclass(frozen=True)
class Bucket:
    """One message: qualified parameter names in order, and the bytes of their gradients."""

    parameters: tuple[str, ...]
    bytes: int


def buckets_of(trace: Trace, count: int) -> tuple[Bucket, ...]:
    """Split the trace's gradients into at most `count` consecutive buckets of nearly equal bytes.

    A bucket ends at the gradient with which the bytes so far reach its share of the whole. Raises InputError when the
    trace holds no gradients of parameters.
    """
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    ready: list[tuple[str, int]] = []
    for gradient in trace.gradient_order:
        parameter = tensors[tensors[gradient].gradient_of or gradient]
        ready.append((parameter.name or parameter.id, tensors[gradient].bytes or 0))
    if not ready:
        raise InputError("found no gradients of parameters, expected a trace of a training step", where=trace.name)
    return tuple(
        Bucket(tuple(name for name, _ in part), sum(size for _, size in part)) for part in _split(ready, count)
    )


def _split(ready: Sequence[tuple[str, int]], count: int) -> list[list[tuple[str, int]]]:
    total = sum(size for _, size in ready)
    parts: list[list[tuple[str, int]]] = [[]]
    done = 0
    for name, size in ready:
        parts[-1].append((name, size))
        done += size
        if len(parts) < count and done * count >= total * len(parts):
            parts.append([])
    return [part for part in parts if part]
