"""The gradients that a step leaves, in the order in which they become ready, separately and packed into messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treadle.planner.documents.trace import Tensor, Trace
from treadle.planner.errors import InputError


def finals(trace: Trace) -> dict[str, str]:
    """From each final gradient to its leaf, a parameter or an input, by tensor id."""
    return {tensor.id: tensor.gradient_of for tensor in trace.tensors if tensor.gradient_of is not None}


def ready(trace: Trace) -> list[tuple[Tensor, Tensor]]:
    """Parameters and their gradients, in the order in which what makes the gradients runs.

    If the trace does not name the parameter, the gradient takes its place.
    """
    tensors = {tensor.id: tensor for tensor in trace.tensors}
    gradients = [tensors[gradient] for gradient in trace.gradient_order]
    return [(tensors[gradient.gradient_of or gradient.id], gradient) for gradient in gradients]


def handed(trace: Trace) -> list[tuple[str, str]]:
    """Ids of the leaf and of every final gradient: those of parameters as they become ready, then those of inputs."""
    rank = {tensor: index for index, tensor in enumerate(trace.gradient_order)}
    pairs = [(leaf, gradient) for gradient, leaf in finals(trace).items()]
    return sorted(pairs, key=lambda pair: (rank.get(pair[1], len(rank)), pair))


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
    sizes = [(parameter.name or parameter.id, gradient.bytes or 0) for parameter, gradient in ready(trace)]
    if not sizes:
        raise InputError("found no gradients of parameters, expected a trace of a training step", where=trace.name)
    return tuple(
        Bucket(tuple(name for name, _ in part), sum(size for _, size in part)) for part in _split(sizes, count)
    )


def _split(sizes: Sequence[tuple[str, int]], count: int) -> list[list[tuple[str, int]]]:
    total = sum(size for _, size in sizes)
    parts: list[list[tuple[str, int]]] = [[]]
    done = 0
    for name, size in sizes:
        parts[-1].append((name, size))
        done += size
        if len(parts) < count and done * count >= total * len(parts):
            parts.append([])
    return [part for part in parts if part]
