"""all_to_all with split sizes, which each rank knows only for itself: the ranks agree what serves the call.

Equal sizes on all ranks are a plain alltoall; multiples of the counts of a plan for alltoallv are served by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import distributed
from torch.distributed import ReduceOp

from treadle.comm import gpu
from treadle.comm.calls import CollectiveCall
from treadle.comm.library import LoadedAlgorithm
from treadle.comm.planned import PlannedGroup

NAME = "all_to_all_single with split sizes"
ANY, NONE = 0, -1
"""Parts: this rank holds nothing that says how large one is; no size fits."""


def agreed(
    planned: PlannedGroup, call: CollectiveCall, outputs: Sequence[int], inputs: Sequence[int]
) -> tuple[CollectiveCall, LoadedAlgorithm] | None:
    """What all ranks run for a call of alltoall with these numbers of elements from and to each rank; None (and a
    logged line) where the framework must."""
    regular = bool(planned.alone.of("alltoall"))
    irregular = [] if gpu.on_gpu(call.tensor) else planned.alone.of("alltoallv")
    reason = planned.unfit("alltoall", call)
    if reason is None and not regular and not irregular:
        reason = "there is no plan for alltoall or alltoallv"
    if reason is not None:
        planned.tally.fell_back(NAME, reason)
        return None
    equal = inputs[0] if regular and len({*inputs, *outputs}) == 1 else NONE
    part = part_of(irregular[0], planned.rank, outputs, inputs) if irregular else NONE
    low_equal, high_equal, low, high = _least(planned, equal, -equal, part, -part)
    if low_equal == -high_equal != NONE:
        algorithm = planned.agreed(call)
        return None if algorithm is None else (call, algorithm)
    part_agreed = -high
    if low != NONE and part_agreed != ANY and _least(planned, int(part in (ANY, part_agreed))) == [1]:
        parted = replace(call, name=NAME, body=lambda run: call.body(partial(run, part=part_agreed)))
        algorithm = planned.ready(irregular[0], parted)
        return None if algorithm is None else (parted, algorithm)
    if irregular:
        planned.tally.fell_back(NAME, "the sizes are no multiple of the plan's counts")
        return None
    lacking = "alltoallv is not executed on GPUs" if gpu.on_gpu(call.tensor) else "there is no plan for alltoallv"
    planned.tally.fell_back(NAME, f"the sizes differ, and {lacking}")
    return None


def part_of(algorithm: LoadedAlgorithm, rank: int, outputs: Sequence[int], inputs: Sequence[int]) -> int:
    """Elements of one part of the pattern that these split sizes are multiples of, ANY or NONE."""
    decisions = algorithm.decisions
    assert decisions is not None
    assert decisions.demands is not None
    sent, received = [0] * decisions.ranks, [0] * decisions.ranks
    for demand in decisions.demands:
        (src,), (dst,) = demand.sources, demand.targets
        sent[dst] += src == rank
        received[src] += dst == rank
    parts = set()
    for sizes, wanted in ((inputs, sent), (outputs, received)):
        for size, count in zip(sizes, wanted, strict=True):
            if bool(size) != bool(count) or (count and size % count):
                return NONE
            if count:
                parts.add(size // count)
    return parts.pop() if len(parts) == 1 else NONE if parts else ANY


def elements(sizes: Sequence[int] | None, whole: torch.Tensor, ranks: int) -> list[int]:
    """Elements for each rank, by split sizes of the first dimension (none: equal ones)."""
    if not sizes:
        return [whole.numel() // ranks] * ranks
    row = whole[0].numel() if whole.dim() and len(whole) else 0
    return [size * row for size in sizes]


def _least(planned: PlannedGroup, *values: int) -> list[int]:
    """The least of each value over all ranks."""
    found = torch.tensor(values)
    planned.lane.run(lambda: distributed.all_reduce(found, ReduceOp.MIN, group=planned.joined()))
    return [int(value) for value in found]
