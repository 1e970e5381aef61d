"""What the operations of an MSCCL++ plan name: channel ends, buffers of other ranks, units of chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from treadle.codegen.collective.mscclpp.document import (
    Chunks,
    ExecutionPlan,
    Gpu,
    MemoryChannels,
    PlanOperation,
    PortChannels,
    SwitchChannels,
    ThreadblockPlan,
)

End = tuple[int, str, int]
"""(rank, channel type, number): one end of a channel."""

SHAPES: dict[str, tuple[str, str]] = {
    "put": ("L+", "R+"), "pws": ("L+", "R+"), "pwsf": ("L+", "R+"), "get": ("R+", "L+"), "copy": ("L", "L"),
    "re": ("LL+", "L"), "res": ("LL+", "LR+"), "rre": ("LR+", "L"), "rres": ("LR+", "LR+"),
    "ppkt": ("L+", "Q+"), "rppkt": ("P", "Q+"), "upkt": ("P", "L"), "cpkt": ("L", "P"),
    "repkt": ("LP+", "L"), "respkt": ("LP+", "LQ+"), "recpkt": ("LP+", "LP"), "recspkt": ("LP+", "LPQ+"),
    "glres": ("S", "S"), "gstore": ("L", "S"), "gstorepkt": ("L", "T"),
}  # fmt: skip
"""Sources and destinations of each operation that moves data: Local, Remote, local Packets, remote packets (Q), all
ranks of a switch (S), packets on all of them (T); + repeats the last one."""

PAIRWISE = frozenset({"put", "pws", "pwsf", "get", "ppkt"})
"""Operations whose k-th source goes to the k-th destination."""


class Operand(NamedTuple):
    """Units of one buffer of one rank that an operation reads or writes."""

    rank: int
    buffer: str
    units: range
    packets: bool
    written: bool


@dataclass(frozen=True, slots=True)
class Flat:
    """One operation outside any pipeline, with where it stands and what its channels and buffers are."""

    op: PlanOperation
    spot: str
    rank: int
    ends: tuple[End, ...]
    parts: tuple[tuple[Chunks, str, int, str], ...]
    """(chunks, letter of SHAPES, rank, buffer) of every source, then every destination; a switch's ranks one by one."""


class ResolvedPlan:
    """Every threadblock of every rank, its operations resolved; the plan's form must be right."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.peers: dict[End, int] = {}
        self.blocks: list[list[Flat]] = []
        self.rank_of: list[int] = []
        ordinal: dict[tuple[str, int, int], list[End]] = defaultdict(list)
        for gpu in plan.gpus:
            for kind in ("memory", "port"):
                for number, peer in enumerate(peers_of(gpu, kind)):
                    self.peers[gpu.id, kind, number] = peer
                    ordinal[kind, gpu.id, peer].append((gpu.id, kind, number))
        self.far: dict[End, End] = {}
        for (kind, rank, peer), ends in ordinal.items():
            self.far.update(zip(ends, ordinal.get((kind, peer, rank), ()), strict=False))
        for gpu in plan.gpus:
            for block in gpu.threadblocks:
                self.rank_of.append(gpu.id)
                self.blocks.append([_flat(gpu, block, op, spot) for op, spot in flattened(gpu, block)])

        shares = (flat.op.tbg_info.tbg_size for ops in self.blocks for flat in ops if flat.op.tbg_info is not None)
        self.units = lcm(*shares, 1)
        """Into how many equal units a chunk is cut, so that each threadblock of a group does whole ones."""

    def peer(self, end: End) -> int:
        return self.peers[end]

    def other(self, end: End) -> End | None:
        return self.far.get(end)


def flattened(gpu: Gpu, block: ThreadblockPlan) -> Iterator[tuple[PlanOperation, str]]:
    """Operations in order with how findings call them; a pipeline's own stand for it, as one iteration."""
    for number, op in enumerate(block.ops):
        spot = f"gpu {gpu.id} tb {block.id} op {number}"
        if op.name != "pipeline":
            yield op, spot
        for inner, part in enumerate(op.ops):
            yield part, f"{spot}.{inner}"


def peers_of(gpu: Gpu, kind: str) -> tuple[int, ...]:
    """The peers of the channels of one type, by number."""
    wanted = MemoryChannels if kind == "memory" else PortChannels
    return tuple(peer for made in gpu.channels if isinstance(made, wanted) for peer in made.connected_to)


def switches_of(gpu: Gpu) -> list[tuple[str, tuple[int, ...]]]:
    """(buffer, ranks) of the switch channels by number."""
    return [
        (made.buffer_type, group.ranks)
        for made in gpu.channels
        if isinstance(made, SwitchChannels)
        for group in made.rank_groups
    ]


def ids_of(block: ThreadblockPlan, kind: str | None) -> tuple[int, ...]:
    """The rank's channels of one type that a threadblock has, by the number its operations use."""
    return tuple(number for made in block.channels if made.channel_type == kind for number in made.channel_ids)


def buffers_of(block: ThreadblockPlan, kind: str | None) -> tuple[int, ...]:
    """The rank's remote buffers that a threadblock reaches through one channel type, likewise."""
    return tuple(
        n for made in block.remote_buffer_refs if made.access_channel_type == kind for n in made.remote_buffer_ids
    )


def letters(shape: str, count: int) -> str:
    """The shape written out for `count` operands, empty when it has no such form."""
    if not shape.endswith("+"):
        return shape if len(shape) == count else ""
    fixed = shape[:-1]
    return fixed + fixed[-1] * (count - len(fixed)) if count >= len(fixed) else ""


def _flat(gpu: Gpu, block: ThreadblockPlan, op: PlanOperation, spot: str) -> Flat:
    ids = ids_of(block, op.channel_type)
    ends: tuple[End, ...] = ()
    if op.channel_type in ("memory", "port"):
        ends = tuple((gpu.id, op.channel_type, ids[number]) for number in op.channel_ids)
    parts: list[tuple[Chunks, str, int, str]] = []
    if op.name in SHAPES:
        for side, shape in zip((op.src_buff, op.dst_buff), SHAPES[op.name], strict=True):
            written = side is op.dst_buff and shape is SHAPES[op.name][1]
            for chunks, letter in zip(side, letters(shape, len(side)), strict=True):
                for rank, buffer in _where(gpu, block, op, chunks):
                    mark = "P" if letter == "L" and op.name == "ppkt" and op.channel_type == "port" else letter
                    parts.append((chunks, mark.lower() if written else mark, rank, buffer))
    return Flat(op, spot, gpu.id, ends, tuple(parts))


def _where(gpu: Gpu, block: ThreadblockPlan, op: PlanOperation, chunks: Chunks) -> list[tuple[int, str]]:
    if chunks.type is not None:
        return [(gpu.id, chunks.type)]
    if chunks.buffer_id is not None:
        remote = gpu.remote_buffers[buffers_of(block, op.channel_type)[chunks.buffer_id]]
        return [(remote.rank, remote.type)]
    assert chunks.switch_channel_id is not None
    buffer, ranks = switches_of(gpu)[ids_of(block, "switch")[chunks.switch_channel_id]]
    return [(rank, buffer) for rank in ranks]


def operands_of(flat: Flat, units: int) -> list[Operand]:
    """What the operation reads and writes, in units of 1/`units` chunk: of each range its share of the group's."""
    result = []
    for chunks, letter, rank, buffer in flat.parts:
        start, length = chunks.index * units, chunks.size * units
        if (share := flat.op.tbg_info) is not None:
            start, length = start + share.tb_id * length // share.tbg_size, length // share.tbg_size
        packets = letter.upper() in "PQT"
        result.append(Operand(rank, buffer, range(start, start + length), packets, letter.islower()))
    return result
