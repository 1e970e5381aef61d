"""A trace, indexed: who makes a value, which values are views, and what a call reads once its views are unfolded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from treadle.planner.documents.trace import Implementation, Op, Tensor, Trace
from treadle.planner.errors import InputError
from treadle.planner.graph.liveness import owners


def require_operators(trace: Trace) -> None:
    """Raises InputError for a trace of a memory snapshot, whose ops only allocate and free."""
    if trace.source == "memory-snapshot":
        text = "found a memory snapshot, expected operators; capture the model with `treadle trace capture`"
        raise InputError(text, where=trace.name, path="$.source")


@dataclass(frozen=True)
class Graph:
    """A trace, indexed."""

    trace: Trace

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return {tensor.id: tensor for tensor in self.trace.tensors}

    @cached_property
    def ops(self) -> dict[str, Op]:
        return {op.id: op for op in self.trace.ops}

    @cached_property
    def producer(self) -> dict[str, Op]:
        return {tensor: op for op in self.trace.ops for tensor in op.outputs if tensor is not None}

    @cached_property
    def updated(self) -> dict[str, str]:
        """From an updated buffer, and from the tensor that holds its new value, to the buffer."""
        return {tensor: pair[0] for pair in self.trace.updates for tensor in pair}

    def is_view(self, op: Op) -> bool:
        """Whether every result shares memory with an argument, so that recomputing it costs nothing; what writes in
        place is no view."""
        made = [self.tensors[tensor].alias_of for tensor in op.outputs if tensor is not None]
        return bool(made) and not op.mutates and all(alias in op.inputs for alias in made)

    def roots(self, call: Op | Implementation) -> Iterator[str]:
        """The values that `call` reads once its views are unfolded: placeholders and results of calls."""
        for tensor in call.inputs:
            yield from self.root(tensor)

    def root(self, tensor: str) -> Iterator[str]:
        op = self.producer.get(tensor)
        if op is not None and self.is_view(op):
            yield from self.roots(op)
        else:
            yield tensor

    @cached_property
    def owner(self) -> dict[str, str]:
        """For each tensor the one whose storage it lives in."""
        return owners(self.trace)

    def storage_bytes(self, owner: str) -> int:
        tensor = self.tensors[owner]
        return tensor.storage_bytes or tensor.bytes or 0
