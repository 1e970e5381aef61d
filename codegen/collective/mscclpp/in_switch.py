"""MSCCL++ execution plans whose data moves through a switch: `glres` and `gstore` on switch channels.

Every rank has BLOCKS threadblocks, which share its operations out among them (`tbg_info`). First each signals some of
the other ranks that this one has begun, and waits for theirs; then all threadblocks of the rank meet at a barrier, move
data, meet again, and do the same once more, so that no rank leaves before all have stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from treadle.codegen.collective.mscclpp.document import (
    MAX_BYTES,
    MAX_CHANNELS,
    MAX_CHANNELS_PER_OP,
    BlockChannels,
    Chunks,
    ExecutionPlan,
    Gpu,
    MemoryChannels,
    OpName,
    PlanOperation,
    RankGroup,
    Share,
    SwitchChannels,
    ThreadblockPlan,
    dumps,
)
from treadle.codegen.collective.program import Buffer, home
from treadle.codegen.collective.switched import SwitchShare, switch_shares
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.planner.passes.collective.collectives import form_of, positions

BLOCKS = 16
"""Threadblocks of a rank; one alone does not fill its port."""
MEET = PlanOperation("barrier", barrier_id=0, num_threadblocks=BLOCKS)


def emit(decisions: CollectiveDecisions, *, inplace: bool, call_bytes: tuple[int, int] = (0, 0)) -> ExecutionPlan:
    """The plan for calls of `call_bytes` (least and most, 0 for no limit). Raises InputError for a collective that only
    adds up: the executor stores a sum to all ranks of the switch or to none; and for more ranks than channels."""
    ranks, shares = decisions.ranks, switch_shares(decisions)
    if any("multicast" not in share.ops for share in shares):
        raise InputError(
            f"{decisions.collective} adds up in the switch for one rank alone, which MSCCL++ cannot: its glres stores "
            "to all ranks; plan with another --method than nvls"
        )
    if ranks - 1 > BLOCKS * MAX_CHANNELS:
        raise InputError(f"found {ranks} ranks, expected at most {BLOCKS * MAX_CHANNELS + 1}, which can all meet")
    asked = form_of(decisions)
    sizes = [list(map(len, positions(members, ranks))) for members in (asked.before, asked.after)]
    group = RankGroup(size=ranks, ranks=tuple(range(ranks)))

    def at(rank: int, place: tuple[Buffer, int]) -> tuple[Buffer, int]:
        return home(decisions.collective, decisions.chunkup, rank, *place) if inplace else place

    placed = [replace(share, source=at(share.rank, share.source), target=at(share.rank, share.target))
              for share in shares]  # fmt: skip
    loaded = {share.source[0] for share in placed if "reduce" in share.ops}
    buffers = sorted(loaded | {share.target[0] for share in placed})
    gpus = []
    for rank, (given, made) in enumerate(zip(*sizes, strict=True)):
        peers = tuple(peer for peer in range(ranks) if peer != rank)
        moves = [_move(share, buffers) for share in placed if share.rank == rank]
        gpus.append(
            Gpu(
                id=rank,
                input_chunks=given or made,  # the runtime divides by both
                output_chunks=made or given,
                scratch_chunks=0,
                threadblocks=tuple(_block(number, moves, len(peers), len(buffers)) for number in range(BLOCKS)),
                channels=(
                    MemoryChannels(connected_to=peers),
                    *(SwitchChannels(buffer_type=buffer, rank_groups=(group,)) for buffer in buffers),
                ),
            )
        )
    plan = ExecutionPlan(
        name=f"treadle_{decisions.collective}_{ranks}_nvls" + "_inplace" * inplace,
        collective=decisions.collective,
        protocol="Simple",
        inplace=inplace,
        gpus=tuple(gpus),
        min_message_size=call_bytes[0],
        max_message_size=call_bytes[1] or MAX_BYTES,
    )
    # The runtime keeps channels by the name of the plan, so two plans must not share one.
    mark = hashlib.sha256(dumps(plan).encode()).hexdigest()[:8]
    return structs.replace(plan, name=f"{plan.name}_{mark}")


def _move(share: SwitchShare, buffers: Sequence[str]) -> PlanOperation:
    """The operation of a share by all threadblocks; `buffers` are those of the rank's switch channels."""

    def behind(place: tuple[Buffer, int]) -> Chunks:
        return Chunks(switch_channel_id=buffers.index(place[0]), index=place[1], size=share.count)

    target = (behind(share.target),)
    if "reduce" in share.ops:
        source = (behind(share.source),)
        return PlanOperation("glres", source, target, channel_type="switch", reduce_op="sum")
    local = Chunks(type=share.source[0], index=share.source[1], size=share.count)
    return PlanOperation("gstore", (local,), target, channel_type="switch")


def _block(number: int, moves: Sequence[PlanOperation], peers: int, switches: int) -> ThreadblockPlan:
    """Threadblock `number`: it meets every BLOCKS-th of the `peers`, and does its share of the `moves`."""
    mine = tuple(range(number, peers, BLOCKS))
    share = Share(tb_id=number, tbg_size=BLOCKS)
    channels = [BlockChannels("memory", mine)] if mine else []
    if moves:
        channels.append(BlockChannels("switch", tuple(range(switches))))
    return ThreadblockPlan(
        id=number,
        ops=(
            *_meeting(len(mine), "rlxsignal", "rlxwait"),
            MEET,
            *(structs.replace(move, tbg_info=share) for move in moves),
            MEET,
            *_meeting(len(mine), "signal", "wait"),
        ),
        channels=tuple(channels),
    )


def _meeting(peers: int, signal: OpName, wait: OpName) -> Iterator[PlanOperation]:
    """Signal to the first `peers` channels of the threadblock, then wait for each."""
    for name in (signal, wait):
        for first in range(0, peers, MAX_CHANNELS_PER_OP):
            some = tuple(range(first, min(first + MAX_CHANNELS_PER_OP, peers)))
            yield PlanOperation(name, channel_ids=some, channel_type="memory")
