"""Sums of sparse gradients on GPUs: what `sums` does, by the kernels given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from treadle.kernels.sparse.gpu import GpuKernels
from treadle.kernels.sparse.owned import OwnedPart
from treadle.planner.errors import InputError


def aggregate(
    kernels: GpuKernels, contributions: Sequence[tuple[Tensor, Tensor]], part: OwnedPart
) -> tuple[Tensor, Tensor]:
    """Bitmap and sums. Takes memory for a row of each unit of the part. Raises InputError for a unit of another one."""
    first = contributions[0][1]
    bitmap, state = (torch.zeros(size, dtype=torch.int32, device=first.device) for size in (part.words, 3))
    sums = first.new_zeros(part.count, first.shape[1])
    for indices, values in contributions:
        kernels.add(sums, bitmap, state, part, indices, values)
    return bitmap, kernels.gather(sums, kernels.decoded(bitmap, part, state, ranks=True))


def decode(kernels: GpuKernels, bitmap: Tensor, part: OwnedPart) -> Tensor:
    """The units of ones. Raises InputError for ones beyond the part."""
    return kernels.decoded(bitmap, part, bitmap.new_zeros(3))


def coalesce(kernels: GpuKernels, indices: Tensor, values: Tensor, units: int) -> tuple[Tensor, Tensor]:
    """Distinct indices in the order in which they first occur, and their sums in order of occurrence: by a stable sort,
    unlike on CPUs, since threads that meet at an index come in no order. Raises InputError for an index that is none of
    `units` units."""
    ordered, places = indices.sort(stable=True)
    distinct, counts = ordered.unique_consecutive(return_counts=True)
    if len(ordered) and not 0 <= int(ordered[0]) <= int(ordered[-1]) < units:
        raise InputError(f"found indices from {ordered[0]} to {ordered[-1]}, expected 0 to {units - 1}")
    ends = counts.cumsum(0)
    begins = ends - counts
    by_first = places[begins].sort().indices if len(places) else begins
    bounds = (each[by_first].to(torch.int32) for each in (begins, ends))
    return distinct[by_first].to(torch.int32), kernels.summed(values, places.to(torch.int32), *bounds)
