"""Gathers, adds up, encodes, decodes and writes the values of sparse gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from treadle.kernels.sparse import gpu_sums
from treadle.kernels.sparse.gpu import gpu_kernels
from treadle.kernels.sparse.library import MAX_UNITS, library, require, thread_count
from treadle.kernels.sparse.owned import OwnedPart
from treadle.planner.errors import InputError


def gather(values: Tensor, indices: Tensor, threads: int | None = None) -> Tensor:
    """Rows [N, w] of float32 [U, w] at indices int32 [N]. Raises InputError for an index that is none of its rows; on
    GPUs, whose results are not awaited here, the row is NaN instead."""
    require(indices, torch.int32, 1, "indices", values.device)
    require(values, torch.float32, 2, "values", values.device)
    if values.is_cuda:
        return gpu_kernels().gather(values, indices)
    units, width = values.shape
    out = torch.empty(len(indices), width)
    library().call("gather", values, units, width, indices, len(indices), out, thread_count(threads))
    return out


def coalesce(indices: Tensor, values: Tensor, units: int, threads: int | None = None) -> tuple[Tensor, Tensor]:
    """Distinct indices int32 [N] of int64 [K] in the order in which they first occur, and the sums [N, w] of the rows
    of float32 [K, w] with each, added in the order in which they occur.

    Raises InputError for an index that is none of `units` units.
    """
    _entries(indices, torch.int64, values)
    if units > MAX_UNITS or len(indices) > MAX_UNITS:
        raise InputError(f"found {len(indices)} entries of {units} units, expected at most {MAX_UNITS} of each")
    if values.is_cuda:
        return gpu_sums.coalesce(gpu_kernels(), indices, values, units)
    count, width, team = len(indices), values.shape[1], thread_count(threads)
    places = torch.empty(count, dtype=torch.int32)
    distinct = library().call("number", indices, count, units, places, team)
    found, sums = torch.empty(distinct, dtype=torch.int32), torch.empty(distinct, width)
    library().call("coalesce", indices, values, count, width, places, found, sums, team)
    return found, sums


def aggregate(
    contributions: Sequence[tuple[Tensor, Tensor]], part: OwnedPart, threads: int | None = None
) -> tuple[Tensor, Tensor]:
    """The bitmap int32 [ceil(P / 32)] of the units of a part that anyone contributes to, and the sums [S, w] of these
    in ascending order.

    A contribution has distinct indices int32 [N] and values float32 [N, w]. They are added one after the other to +0:
    ((0 + w0) + w1) + w2. A sum that happens to be zero is sent like any other, so that the bitmap follows from the
    indices alone. Raises InputError for a unit of another part.
    """
    if not contributions:
        raise InputError("found no contributions, expected at least one")
    width, on_gpu = contributions[0][1].shape[-1], contributions[0][1].is_cuda
    for indices, values in contributions:
        _entries(indices, torch.int32, values)
        if values.shape[1] != width:
            raise InputError(f"found rows of {values.shape[1]} and of {width} values, expected rows of one width")
    if on_gpu:
        return gpu_sums.aggregate(gpu_kernels(), contributions, part)
    team, owned = thread_count(threads), part.call()
    bitmap = torch.zeros(part.words, dtype=torch.int32)
    ranks = []
    for indices, _ in contributions:
        ranks.append(torch.empty_like(indices))
        library().call("mark", owned, indices, len(indices), bitmap, ranks[-1], team)
    before, ones = _ones_before(bitmap, part)
    sums = torch.zeros(ones, width)
    for rank, (_, values) in zip(ranks, contributions, strict=True):
        library().call("add", rank, values, len(rank), width, bitmap, before, sums, team)
    return bitmap, sums


def decode(bitmap: Tensor, part: OwnedPart, threads: int | None = None) -> Tensor:
    """The units int32 [S] of a part whose bits are set, ascending. Raises InputError for a bitmap of another size, or
    with bits beyond it."""
    require(bitmap, torch.int32, 1, "bitmap", bitmap.device)
    if len(bitmap) != part.words:
        raise InputError(f"found a bitmap of {len(bitmap)} words, expected {part.words}")
    if bitmap.is_cuda:
        return gpu_sums.decode(gpu_kernels(), bitmap, part)
    before, ones = _ones_before(bitmap, part)
    out = torch.empty(ones, dtype=torch.int32)
    library().call("decode", part.call(), bitmap, before, out, thread_count(threads))
    return out


def write(indices: Tensor, values: Tensor, out: Tensor, scale: float = 1.0, threads: int | None = None) -> None:
    """Write values float32 [N, w] times `scale` to the rows `indices` int32 [N] of `out` [U, w], and zeros to all
    others. Raises InputError for an index that is none of its rows; GPUs, whose results are not awaited here, ignore
    it."""
    _entries(indices, torch.int32, values)
    require(out, torch.float32, 2, "out", values.device)
    units, width = out.shape
    if values.shape[1] != width:
        raise InputError(f"found rows of {values.shape[1]} values, expected {width}")
    if values.is_cuda:
        gpu_kernels().write(out.zero_(), indices, values, float(scale))
        return
    count, team = len(indices), thread_count(threads)
    library().call("write", indices, values, count, width, float(scale), out, units, team)


def _ones_before(bitmap: Tensor, part: OwnedPart) -> tuple[Tensor, int]:
    before = torch.empty(len(bitmap), dtype=torch.int32)
    return before, library().call("ones_before", bitmap, part.count, before)


def _entries(indices: Tensor, dtype: torch.dtype, values: Tensor) -> None:
    require(values, torch.float32, 2, "values", values.device)
    require(indices, dtype, 1, "indices", values.device)
    if len(values) != len(indices):
        raise InputError(f"found {len(indices)} indices of {len(values)} rows, expected as many")
