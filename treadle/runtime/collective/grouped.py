"""The carrier for GPUs of several hosts: rounds of grouped sends and receives of the framework (`rounds`).

NCCL carries them between GPUs, on a communicator of the program's own; gloo between CPUs. The sums are PyTorch's
kernels for many tensors, one for each wave. With NCCL nothing waits for the GPU, so a call can be captured in a CUDA
graph once it has run: the first call connects.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, distributed

from treadle.codegen.collective.check_rounds import check_rounds
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.collective.rounds import LocalWork, RankRounds, Round, StagedRange, Transmission, rounds_of
from treadle.planner.documents.scalars import many
from treadle.planner.errors import CheckFailed, MissingBackendError
from treadle.runtime.agreement import agreed
from treadle.runtime.collective.messages import Executor, require_runnable

Buffers = dict[str, Tensor]

SUMS: dict[str, Callable[[list[Tensor], list[Tensor]], None]] = {
    "sum": torch._foreach_add_,
    "avg": torch._foreach_add_,
    "min": torch._foreach_minimum_,
    "max": torch._foreach_maximum_,
}
"""What combines targets with sources, by operation; the caller divides a sum for the average."""


def grouped_executor(
    program: CollectiveProgram,
    rank: int,
    group: Any,
    device: str,
    *,
    inplace: bool | None = None,
    cut: int = 1,
    checked: bool = True,
) -> Executor:
    """A function that runs `program` as `rank` of `group` by grouped sends and receives of that group's library, on
    tensors on devices of type `device`. Arguments and calls as for `treadle.runtime.collective.messages.executor`; a
    program without meaning, such as a probe, is not to be `checked`.

    Raises InputError as that one, CheckFailed when the program never ends or its rounds fail their check.
    """
    require_runnable(program, group)
    here = not program.outofplace if inplace is None else inplace
    ranks = rounds_of(program, inplace=here)
    if checked and (findings := check_rounds(program, ranks, inplace=here)):
        raise CheckFailed(f"{program.name}: not run, the check of its rounds failed", tuple(findings))
    return Executor(program, rank, InRounds(program.name, ranks[rank], group, device), inplace=here, cut=cut)


def nccl_group() -> tuple[Any, torch.device]:
    """A group of all processes whose messages NCCL carries, and the GPU of this one, by its number on its host.

    A call of all processes. Raises MissingBackendError on all of them where one has no NCCL or no GPU of its own.
    """
    rank, local = distributed.get_rank(), os.environ.get("LOCAL_RANK")
    number = int(local) if local is not None and local.isdecimal() else rank

    def card() -> torch.device:
        if not distributed.is_nccl_available() or number >= torch.cuda.device_count():
            found = many(torch.cuda.device_count(), "GPU")
            found += " and NCCL" if distributed.is_nccl_available() else " and no NCCL"
            raise MissingBackendError(
                f"found {found}, expected both for each process of a host; backend gloo runs on CPUs"
            )
        torch.cuda.set_device(number)
        return torch.device("cuda", number)

    device = agreed(card)
    return distributed.new_group(backend="nccl"), device


class InRounds:
    """One rank's rounds on a group. The staging buffer is kept for the next call of the same size."""

    def __init__(self, name: str, own: RankRounds, group: Any, device: str) -> None:
        self.name, self.own, self.group, self.device = name, own, group, device
        self.staging = torch.empty(0)

    def carry(self, buffers: Buffers, width: int, op: str, elements: int) -> None:
        """Raises CheckFailed where the library reports a failure, such as a peer that is gone."""
        buffers = {**buffers, "t": self._staging(buffers["i"], width)}
        for number, each in enumerate(self.own.rounds):
            combine(each.local, buffers, width, op)
            try:
                self._exchange(each, buffers, width)
            except RuntimeError as error:
                text = str(error).strip().splitlines()[0].split(". ")[0]
                raise CheckFailed(f"{self.name}: {_peers(each)} in round {number}: {text}") from None

    def _exchange(self, each: Round, buffers: Buffers, width: int) -> None:
        """All messages of a round as one group."""

        def ends(call: Any, side: tuple[Transmission, ...]) -> list[Any]:
            return [
                distributed.P2POp(call, _slice(buffers, place, width), group=self.group, group_peer=peer)
                for peer, place in side
            ]

        group = [*ends(distributed.isend, each.sends), *ends(distributed.irecv, each.receives)]
        for work in distributed.batch_isend_irecv(group) if group else ():
            work.wait()

    def _staging(self, like: Tensor, width: int) -> Tensor:
        elements = self.own.staging * width
        if (self.staging.numel(), self.staging.dtype, self.staging.device) != (elements, like.dtype, like.device):
            self.staging = like.new_empty(elements)
        return self.staging


def combine(local: tuple[LocalWork, ...], buffers: Buffers, width: int, op: str) -> None:
    """The local work of a round, one call for the copies of a wave and one for its sums."""
    for (_, adds), works in groupby(local, key=lambda work: (work.wave, work.adds)):
        targets, sources = [], []
        for work in works:
            targets.append(_slice(buffers, work.target, width))
            sources.append(_slice(buffers, work.source, width))
        (SUMS[op] if adds else torch._foreach_copy_)(targets, sources)


def _slice(buffers: Buffers, place: StagedRange, width: int) -> Tensor:
    buffer, first, count = place
    return buffers[buffer][first * width : (first + count) * width]


def _peers(each: Round) -> str:
    ranks = sorted({peer for peer, _ in (*each.sends, *each.receives)})
    return f"lost rank {ranks[0]}" if len(ranks) == 1 else f"lost one of ranks {', '.join(map(str, ranks))}"
