"""What each collective gives to a program, and what it does with the result.

A call is the same for programs on the CPU and on GPUs, at once or in the background. Arguments are those that
treadle.comm.arguments or torch.distributed let through; roots are ranks of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from treadle.comm.framework import word

COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "allgather",
    "reduce_scatter_tensor": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_to_all_single": "alltoall",
    "gather": "gather",
    "scatter": "scatter",
}
"""Calls by the collective that they are."""


class RunProgram(Protocol):
    """Runs a program on this rank's input; the result may lie in `out`. See `Executor.__call__`."""

    def __call__(
        self, tensor: Tensor, *, op: str = "sum", out: Tensor | None = None, part: int | None = None
    ) -> Tensor: ...


@dataclass(frozen=True)
class CollectiveCall:
    """One call on this rank; `body` does it, once there is a program to run."""

    name: str
    tensor: Tensor
    body: Callable[[RunProgram], None]
    outputs: tuple[Tensor, ...]
    """What holds the result, for devices and dtypes too."""
    op: Any = "sum"
    root: int | None = None
    copies: int = 1
    """How many times `tensor` is the input."""
    inputs: tuple[Tensor, ...] = ()
    """Others that are read."""

    @property
    def collective(self) -> str:
        return COLLECTIVES[self.name]

    @property
    def input_bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size() * self.copies


def all_reduce(tensor: Tensor, op: Any) -> CollectiveCall:
    def body(run: RunProgram) -> None:
        into(tensor, run(tensor, op=word(op) or ""))

    return CollectiveCall("all_reduce", tensor, body, (tensor,), op)


def broadcast(tensor: Tensor, src: int) -> CollectiveCall:
    return CollectiveCall("broadcast", tensor, lambda run: into(tensor, run(tensor)), (tensor,), root=src)


def reduce(tensor: Tensor, dst: int, op: Any, rank: int) -> CollectiveCall:
    """The other ranks keep their tensor; a program in place works in the tensors of all ranks."""

    def body(run: RunProgram) -> None:
        result = run(tensor if rank == dst else tensor.clone(), op=word(op) or "")
        if rank == dst:
            into(tensor, result)

    return CollectiveCall("reduce", tensor, body, (tensor,), op, dst)


def all_gather(output: Tensor, tensor: Tensor) -> CollectiveCall:
    def body(run: RunProgram) -> None:
        into(output, run(tensor.reshape(-1), out=output))

    return CollectiveCall("all_gather_into_tensor", tensor, body, (output,))


def all_gather_list(rows: Sequence[Tensor], tensor: Tensor) -> CollectiveCall:
    """An allgather into a tensor for each rank."""

    def body(run: RunProgram) -> None:
        spread(rows, run(tensor.reshape(-1)))

    return CollectiveCall("all_gather_into_tensor", tensor, body, tuple(rows))


def reduce_scatter(output: Tensor, tensor: Tensor, op: Any) -> CollectiveCall:
    def body(run: RunProgram) -> None:
        into(output, run(tensor.reshape(-1), op=word(op) or "", out=output))

    return CollectiveCall("reduce_scatter_tensor", tensor, body, (output,), op)


def reduce_scatter_list(output: Tensor, rows: Sequence[Tensor], op: Any) -> CollectiveCall:
    """A reducescatter of a tensor for each rank."""

    def body(run: RunProgram) -> None:
        into(output, run(joined(rows), op=word(op) or "", out=output))

    return CollectiveCall("reduce_scatter_tensor", output, body, (output,), op, copies=len(rows), inputs=tuple(rows))


def all_to_all(output: Tensor, tensor: Tensor) -> CollectiveCall:
    def body(run: RunProgram) -> None:
        into(output, run(tensor.reshape(-1), out=output))

    return CollectiveCall("all_to_all_single", tensor, body, (output,))


def all_to_all_list(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> CollectiveCall:
    """An alltoall of a tensor for each rank."""

    def body(run: RunProgram) -> None:
        spread(outputs, run(joined(inputs)))

    return CollectiveCall(
        "all_to_all_single", inputs[0], body, tuple(outputs), copies=len(inputs), inputs=tuple(inputs)
    )


def gather(tensor: Tensor, rows: Sequence[Tensor] | None, dst: int) -> CollectiveCall:
    def body(run: RunProgram) -> None:
        result = run(tensor.reshape(-1))
        if rows:
            spread(rows, result)

    return CollectiveCall("gather", tensor, body, tuple(rows or ()), root=dst)


def scatter(tensor: Tensor, rows: Sequence[Tensor] | None, src: int, ranks: int) -> CollectiveCall:
    def body(run: RunProgram) -> None:
        into(tensor, run(joined(rows) if rows else tensor.new_empty(ranks * tensor.numel())))

    return CollectiveCall("scatter", tensor, body, (tensor,), root=src, copies=ranks, inputs=tuple(rows or ()))


def into(target: Tensor, result: Tensor) -> None:
    """Copy `result` to `target`, unless it lies there."""
    if target.data_ptr() != result.data_ptr():
        target.detach().copy_(result.reshape(target.shape))


def joined(rows: Sequence[Tensor]) -> Tensor:
    """The elements of all tensors in one."""
    return torch.cat([row.detach().reshape(-1) for row in rows])


def spread(rows: Sequence[Tensor], whole: Tensor) -> None:
    """Copy the elements of `whole` to the tensors, one after the other."""
    for row, part in zip(rows, whole.reshape(-1).split([row.numel() for row in rows]), strict=True):
        into(row, part)
