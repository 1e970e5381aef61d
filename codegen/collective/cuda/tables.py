"""A collective program as the tables that the CUDA interpreter reads: `BlockEntry` and `Step` of treadle_types.h."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from treadle.codegen.collective.order import incoming, outgoing
from treadle.codegen.collective.program import (
    BlockStep,
    CollectiveProgram,
    Connection,
    RankProgram,
    StepType,
    Threadblock,
)
from treadle.planner.errors import InputError

BUFFERS = {"i": 0, "o": 1, "s": 2}
RECEIVE, SEND, READ, WRITE, REDUCE = 1, 2, 4, 8, 16
FLOWS: dict[StepType, int] = {
    "nop": 0,
    "s": SEND | READ,
    "r": RECEIVE | WRITE,
    "rcs": RECEIVE | WRITE | SEND,
    "rrs": RECEIVE | READ | REDUCE | SEND,
    "rrc": RECEIVE | READ | REDUCE | WRITE,
    "rrcs": RECEIVE | READ | REDUCE | WRITE | SEND,
    "cpy": READ | WRITE,
    "re": READ | REDUCE | WRITE,
}

CUT_AS_ONE = frozenset({"alltoallv", "sendrecv", "send", "recv", "custom"})
"""Collectives without parts of one size: each chunk is cut on its own."""


class BlockRow(NamedTuple):
    """See `BlockEntry` of treadle_types.h."""

    rank: int
    id: int
    rank_blocks: int
    first_step: int
    steps: int
    recv_rank: int
    recv_block: int
    recv_slots: int
    send_rank: int
    send_block: int
    send_slots: int


class StepRow(NamedTuple):
    """See `Step` of treadle_types.h; operands that a step does not touch are 0."""

    flow: int
    source_buffer: int
    source: int
    target_buffer: int
    target: int
    chunks: int
    wait_block: int
    wait_step: int
    awaited: int


@dataclass(frozen=True, slots=True)
class Tables:
    """Blocks in order of rank and number, the steps of each one after the other."""

    blocks: tuple[BlockRow, ...]
    steps: tuple[StepRow, ...]
    max_count: int
    """Chunks of the largest message."""
    part_chunks: int
    """Chunks into which a part of the payload is cut, the last ones short where it does not divide."""
    reduces: bool

    def steps_of(self, block: BlockRow) -> tuple[StepRow, ...]:
        return self.steps[block.first_step : block.first_step + block.steps]


def tables(program: CollectiveProgram) -> Tables:
    """The tables of `program`. Copies that TACCL's dialect does first become a threadblock that all others wait for.

    The program must pass its check. Raises InputError for steps that add residuals, which only microsoft/msccl knows,
    and for connections with one end.
    """
    ranks = [_with_copies(ranked) for ranked in program.ranks]
    program = replace(program, ranks=tuple(ranks))
    senders, receivers = _ends(program)
    for connection in sorted({*senders} ^ {*receivers}):
        raise InputError(
            f"found a connection from gpu {connection.src} to gpu {connection.dst} on channel {connection.channel} "
            "with one end, expected sends and receives",
            where=program.name,
        )
    arriving = {end: connection for connection, end in receivers.items()}
    leaving = {end: connection for connection, end in senders.items()}
    receiving = [sorted(end for end in receivers.values() if end[0] == rank) for rank in range(len(ranks))]
    areas = {end: number for ends in receiving for number, end in enumerate(ends)}
    blocks: list[BlockRow] = []
    steps: list[StepRow] = []
    for rank, ranked in enumerate(ranks):
        for number, block in enumerate(ranked.threadblocks):
            end = (rank, number)
            receiver = receivers[leaving[end]] if end in leaving else None
            blocks.append(
                BlockRow(
                    rank,
                    number,
                    len(ranked.threadblocks),
                    len(steps),
                    len(block.steps),
                    *((*senders[arriving[end]], areas[end]) if end in arriving else (-1, -1, -1)),
                    *((*receiver, areas[receiver]) if receiver is not None else (-1, -1, -1)),
                )
            )
            steps += [_row(step) for step in block.steps]
    return Tables(
        blocks=tuple(blocks),
        steps=tuple(steps),
        max_count=max((row.chunks for row in steps), default=1),
        part_chunks=1 if program.collective in CUT_AS_ONE else program.part_chunks,
        reduces=any(row.flow & REDUCE for row in steps),
    )


_End = tuple[int, int]
"""(rank, threadblock)"""
_Ends = dict[Connection, _End]


def _ends(program: CollectiveProgram) -> tuple[_Ends, _Ends]:
    """Which threadblock sends and which receives on a connection (src, dst, channel)."""
    senders: _Ends = {}
    receivers: _Ends = {}
    for place, block, step in program.steps():
        if (sent := outgoing(place, block, step)) is not None:
            senders.setdefault(sent, place[:2])
        if (received := incoming(place, block, step)) is not None:
            receivers.setdefault(received, place[:2])
    return senders, receivers


def _row(step: BlockStep) -> StepRow:
    if step.type not in FLOWS:
        raise InputError(f"found step type {step.type}, expected one of {', '.join(FLOWS)}")
    flow = FLOWS[step.type]
    source = (BUFFERS[step.src[0]], step.src[1]) if flow & READ and step.src is not None else (0, 0)
    target = (BUFFERS[step.dst[0]], step.dst[1]) if flow & WRITE and step.dst is not None else (0, 0)
    return StepRow(flow, *source, *target, step.count if flow else 0, *(step.depends or (-1, -1)), int(step.awaited))


def _with_copies(ranked: RankProgram) -> RankProgram:
    """The same rank with its copies as the steps of one more threadblock, and a `nop` before all other steps."""
    if not ranked.copies:
        return ranked
    last = len(ranked.copies) - 1
    copying = Threadblock(
        send=None,
        recv=None,
        channel=0,
        steps=tuple(
            BlockStep("cpy", ("i", source), ("o", target), awaited=number == last)
            for number, (source, target) in enumerate(ranked.copies)
        ),
    )
    number = len(ranked.threadblocks)
    return replace(
        ranked, copies=(), threadblocks=(*(_after(block, number, last) for block in ranked.threadblocks), copying)
    )


def _after(block: Threadblock, other: int, position: int) -> Threadblock:
    def moved(step: BlockStep) -> BlockStep:
        return step if step.depends is None else replace(step, depends=(step.depends[0], step.depends[1] + 1))

    wait = BlockStep("nop", count=0, depends=(other, position))
    return replace(block, steps=(wait, *(moved(step) for step in block.steps)))
