"""What a call must be given. Anything else is refused before the first message: what arrived would be garbage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ReduceOp

from treadle.planner.errors import InputError


def check_root(root: int, ranks: int) -> None:
    """Raise InputError when `root` is not a rank of a group of `ranks`."""
    if not 0 <= root < ranks:
        raise InputError(f"found root {root}, expected a rank of the group, 0 to {ranks - 1}")


def check_parts(tensor: Tensor, ranks: int) -> None:
    """Raise InputError when `tensor` cannot be cut along its first dimension into a part for each rank."""
    if not tensor.dim() or len(tensor) % ranks:
        raise InputError(f"found {_text(tensor)}, expected a first dimension that {ranks} ranks divide")


def check_output(output: Tensor, tensor: Tensor, elements: int) -> None:
    """Raise InputError when `output` cannot take `elements` elements like those of `tensor`."""
    if output.numel() != elements or output.dtype != tensor.dtype:
        raise InputError(f"found as output {_text(output)}, expected {elements} elements of {_dtype(tensor)}")


def check_places(rank: int, tensor: Tensor, outputs: Sequence[Tensor]) -> None:
    """Raise InputError for tensors without memory, and for an output on another device than the input: the framework
    would run what other ranks run as kernels."""
    for one in (tensor, *outputs):
        if one.device.type == "meta":
            raise InputError(f"rank {rank}: found a tensor on meta, which has no memory, expected one on cpu or cuda")
    for output in outputs:
        if output.device != tensor.device:
            raise InputError(
                f"rank {rank}: found an input on {tensor.device} and an output on {output.device}, expected one device"
            )


def check_splits(sizes: list[int] | None, whole: Tensor, ranks: int, name: str) -> None:
    """Raise InputError when `sizes` (None: equal ones) do not cut the first dimension of `whole`, one for each rank."""
    if sizes is None:
        check_parts(whole, ranks)
    elif len(sizes) != ranks or min(sizes) < 0 or not whole.dim() or sum(sizes) != len(whole):
        raise InputError(f"found {name} {list(sizes)}, expected one size for each of {ranks} ranks, in all the first "
                         f"dimension of {_text(whole)}")  # fmt: skip


def list_problem(rows: list[Tensor] | None, tensor: Tensor, ranks: int, *, root: bool, name: str) -> str | None:
    """What is wrong with the list of a gather or a scatter, which only the root gives: an entry for each rank, each
    like `tensor`."""
    if not root:
        return f"found a {name}, expected one on the root alone" if rows else None
    if not rows:
        return f"found no {name}, expected one of {ranks} tensors on the root"
    if len(rows) != ranks:
        return f"found a {name} of length {len(rows)}, expected one tensor for each of {ranks} ranks"
    for index, row in enumerate(rows):
        if (row.shape, row.dtype, row.device) != (tensor.shape, tensor.dtype, tensor.device):
            return f"found {_text(row)} as entry {index} of {name}, expected {_text(tensor)}"
    return None


def refuse_alike(problem: str | None, group: Any) -> None:
    """Raise InputError on all ranks of `group` when one has a problem; alone it would leave the others waiting."""
    rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
    first = torch.tensor([ranks if problem is None else rank])
    distributed.all_reduce(first, ReduceOp.MIN, group=group)
    if int(first) < ranks:
        words = [problem]
        distributed.broadcast_object_list(words, group=group, group_src=int(first))
        raise InputError(f"rank {int(first)}: {words[0]}")


def _text(tensor: Tensor) -> str:
    device = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"a tensor of shape {tuple(tensor.shape)} and {_dtype(tensor)}{device}"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
