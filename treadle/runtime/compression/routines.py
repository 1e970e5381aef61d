"""The collectives of compression plans over process groups of torch.distributed: sums of gradients, and payloads of one
size on all ranks, which are bytes.

gloo sums a reduce-scatter as an allreduce, which carries twice the bytes. On CPUs it is an alltoall here, and each rank
adds up what it got in the order of ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from treadle.planner.documents.compression_costs import Routine
from treadle.runtime.torch_names import all_gather_single, reduce_scatter_single

ROUTINES: tuple[Routine, ...] = (
    "allreduce",
    "reduce-scatter",
    "allgather",
    "alltoall",
    "reduce",
    "broadcast",
    "gather",
)
"""Those of torch.distributed, which `run` runs."""
SUMS = frozenset(("allreduce", "reduce-scatter", "reduce"))
ROOT = 0
"""The rank within a group that `reduce`, `gather` and `broadcast` are about."""


def result_elements(routine: Routine, elements: int, ranks: int) -> int:
    """Elements of the result to which each of `ranks` brings `elements`."""
    if routine in ("allgather", "gather"):
        return elements * ranks
    return elements // ranks if routine == "reduce-scatter" else elements


def run(routine: Routine, group: Any, source: Tensor, out: Tensor | None = None) -> Tensor | None:
    """Run a collective on the ranks of `group`, to which each brings the contiguous vector `source` of one length.

    Returns `out`, of `result_elements`, or a new vector: by rank in the order of the group for allgather, gather and
    alltoall, whose `source` holds a part for each rank; what rank ROOT of the group brought for broadcast; a sum for
    the others. None on the ranks other than ROOT for reduce and gather. `source` is left as it is unless it is `out`.
    With CUDA tensors the result is there for later work of the current stream.

    Raises ValueError for sums of bytes, and for a length that the ranks do not divide where it is divided.
    """
    if group is None:
        return source if out is None else out.copy_(source)
    ranks, is_root = distributed.get_world_size(group), distributed.get_rank(group) == ROOT
    if routine in SUMS and source.dtype == torch.uint8:
        raise ValueError(f"{routine} of bytes adds up no values: view the payload as what it holds")
    if routine in ("reduce-scatter", "alltoall") and source.numel() % ranks:
        raise ValueError(f"{routine} of {source.numel()} elements among {ranks} ranks")
    gets = is_root or routine not in ("reduce", "gather")
    if out is None and gets:
        out = source.new_empty(result_elements(routine, source.numel(), ranks))
    match routine:
        case "allreduce":
            distributed.all_reduce(_copied(source, out), group=group)
        case "reduce-scatter":
            assert out is not None
            _reduce_scatter(source, out, ranks, group)
        case "allgather":
            all_gather_single(out, source, group=group)
        case "alltoall":
            distributed.all_to_all_single(out, source, group=group)
        case "reduce":
            distributed.reduce(_copied(source, out), group_dst=ROOT, group=group)
        case "broadcast":
            assert out is not None
            distributed.broadcast(_copied(source, out) if is_root else out, group_src=ROOT, group=group)
        case "gather":
            parts = list(out.chunk(ranks)) if out is not None and is_root else None
            distributed.gather(source, parts, group_dst=ROOT, group=group)
        case _:
            raise ValueError(f"{routine} is no routine of torch.distributed")
    return out if gets else None


def _copied(source: Tensor, out: Tensor | None) -> Tensor:
    """A copy that a collective may change."""
    if out is source:
        return source
    return source.clone() if out is None else out.copy_(source)


def _reduce_scatter(source: Tensor, out: Tensor, ranks: int, group: Any) -> None:
    if source.is_cuda:
        reduce_scatter_single(out, source, group=group)
        return
    parts = torch.empty_like(source)
    distributed.all_to_all_single(parts, source, group=group)
    first, *others = parts.chunk(ranks)
    out.copy_(first)
    for part in others:
        out.add_(part)
