"""The framework's own collectives, for tensors of any strides, which gloo ignores: it reads and writes memory in order.

Roots are ranks of the group. Arguments are those that treadle.comm.arguments lets through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ReduceOp

from treadle.planner.errors import InputError
from treadle.runtime.collective.messages import require_average
from treadle.runtime.torch_names import all_gather_single, reduce_scatter_single

OPS = {ReduceOp.SUM: "sum", ReduceOp.AVG: "avg", ReduceOp.MIN: "min", ReduceOp.MAX: "max"}
WORDS = {text: op for op, text in OPS.items()}


def word(op: Any) -> str | None:
    """sum, min, max or avg; None for other reductions."""
    if isinstance(op, str):
        return op if op in WORDS else None
    return next((text for text, known in WORDS.items() if op == known), None)


def op_name(op: Any) -> str:
    """The name of a reduction, such as PRODUCT."""
    known = ReduceOp.RedOpType.__members__.items()
    return op if isinstance(op, str) else next((name for name, each in known if op == each), str(op))


def all_reduce(tensor: Tensor, op: Any, group: Any) -> None:
    with dense(tensor) as whole:
        _reduced(lambda plain: distributed.all_reduce(whole, plain, group=group), whole, op, group)


def broadcast(tensor: Tensor, src: int, group: Any) -> None:
    with dense(tensor) as whole:
        distributed.broadcast(whole, group=group, group_src=src)


def reduce(tensor: Tensor, dst: int, op: Any, group: Any) -> None:
    """The other ranks keep their tensor; gloo would work in it."""
    with dense(tensor if distributed.get_rank(group) == dst else tensor.detach().clone()) as whole:
        _reduced(lambda plain: distributed.reduce(whole, group=group, group_dst=dst, op=plain), whole, op, group)


def all_gather(output: Tensor, tensor: Tensor, group: Any) -> None:
    with dense(output) as whole:
        all_gather_single(whole.view(-1), tensor.detach().reshape(-1), group=group)


def reduce_scatter(output: Tensor, tensor: Tensor, op: Any, group: Any) -> None:
    flat = tensor.detach().reshape(-1)
    with dense(output) as whole:
        into = whole.view(-1)
        _reduced(lambda plain: reduce_scatter_single(into, flat, plain, group=group), whole, op, group)


def all_to_all(
    output: Tensor, tensor: Tensor, out_sizes: list[int] | None, in_sizes: list[int] | None, group: Any
) -> None:
    with dense(output) as whole:
        distributed.all_to_all_single(whole, tensor.contiguous(), out_sizes, in_sizes, group=group)


def gather(tensor: Tensor, rows: list[Tensor] | None, dst: int, group: Any) -> None:
    with ExitStack() as stack:
        whole = None if rows is None else [stack.enter_context(dense(row)) for row in rows]
        distributed.gather(tensor.contiguous(), whole, group=group, group_dst=dst)


def scatter(tensor: Tensor, rows: list[Tensor] | None, src: int, group: Any) -> None:
    with dense(tensor) as whole:
        given = None if rows is None else [row.contiguous() for row in rows]
        distributed.scatter(whole, given, group=group, group_src=src)


@contextmanager
def dense(tensor: Tensor) -> Iterator[Tensor]:
    """`tensor`, or a contiguous copy of it that is written back in the end."""
    if tensor.layout != torch.strided:
        yield tensor
        return
    plain = tensor.detach()
    copy = plain.contiguous()
    yield copy
    if copy is not plain:
        plain.copy_(copy)


def _reduced(run: Callable[[Any], Any], result: Tensor, op: Any, group: Any) -> None:
    """Call a reduction; gloo has no average, so there it is a sum and a division."""
    known = WORDS.get(op) if isinstance(op, str) else op
    if known is None:
        raise InputError(f"found op {op!r}, expected one of {', '.join(WORDS)} or a ReduceOp")
    if known == ReduceOp.AVG:
        require_average(result.dtype)
    averages = known == ReduceOp.AVG and "gloo" in distributed.get_backend(group)
    run(ReduceOp.SUM if averages else known)
    if averages:
        result.div_(distributed.get_world_size(group), rounding_mode=None if result.is_floating_point() else "trunc")
