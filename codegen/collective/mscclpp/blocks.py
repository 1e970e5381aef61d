"""Threadblocks of an MSCCL++ plan: operations in order, with the `nop`s that keep the threads of a block together.

A `Lane` collects the operations of one thread of control and cuts them into threadblocks that stay within the limits of
the runtime; a barrier or a semaphore leads from one to the next. `gpu_of` numbers what they name: channels, buffers,
semaphores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from treadle.codegen.collective.mscclpp.document import (
    MAX_BARRIERS,
    MAX_CHANNELS,
    MAX_CHANNELS_PER_OP,
    MAX_OPS,
    MAX_SEMAPHORES,
    BlockBuffers,
    BlockChannels,
    BufferType,
    Chunks,
    Gpu,
    MemoryChannels,
    OpName,
    PlanOperation,
    PointChannel,
    PortChannels,
    RemoteBuffer,
    Semaphore,
    ThreadblockPlan,
)
from treadle.codegen.collective.program import Connection
from treadle.planner.errors import InputError

Space = Literal["i", "o", "s", "p"]
"""A buffer of the plan, or the packets in scratch."""

KINDS: tuple[PointChannel, ...] = ("memory", "port")

CLOSING = 6
"""Operations that adding one more and ending the threadblock then may take, besides a flush per port channel."""


class Range(NamedTuple):
    """`size` chunks of a buffer of `rank`."""

    rank: int
    space: Space
    start: int
    size: int

    def meets(self, other: Range) -> bool:
        """Whether the two share a chunk of plain data; packets bring their own flags."""
        apart = self.start >= other.start + other.size or other.start >= self.start + self.size
        return self.space != "p" and self[:2] == other[:2] and not apart


class Endpoint(NamedTuple):
    """The end of a channel at `rank`; every connection of the program has a channel of its own."""

    rank: int
    peer: int
    connection: Connection
    port: bool

    @property
    def kind(self) -> PointChannel:
        return "port" if self.port else "memory"


class RemoteName(NamedTuple):
    """A buffer of another rank."""

    rank: int
    buffer: BufferType


@dataclass(frozen=True, slots=True)
class SymbolicOp:
    """An operation before what it names has numbers."""

    name: OpName
    src: tuple[Range, ...] = ()
    dst: tuple[Range, ...] = ()
    ends: tuple[Endpoint, ...] = ()
    semaphores: tuple[int, ...] = ()
    barrier: int | None = None


@dataclass(slots=True)
class Semaphores:
    """The semaphores and barriers of one rank, handed out one after the other."""

    rank: int
    count: int = 0
    barriers: int = 0

    def next(self) -> int:
        self.count += 1
        if self.count > MAX_SEMAPHORES:
            raise InputError(
                f"gpu {self.rank} needs more than the {MAX_SEMAPHORES} semaphores of MSCCL++ between its threadblocks"
            )
        return self.count - 1

    def link(self) -> tuple[SymbolicOp, SymbolicOp]:
        """How a threadblock ends and the one that goes on with its work begins: at a barrier of the two, or with a
        semaphore when there are no more barriers."""
        if self.barriers < MAX_BARRIERS:
            self.barriers += 1
            meeting = SymbolicOp("barrier", barrier=self.barriers - 1)
            return meeting, meeting
        number = (self.next(),)
        return SymbolicOp("sem_release", semaphores=number), SymbolicOp("sem_acquire", semaphores=number)


@dataclass(slots=True)
class Lane:
    """Operations in order. `pieces` are the threadblocks so far, the last of them open."""

    rank: int
    semaphores: Semaphores
    pieces: list[list[SymbolicOp]] = field(default_factory=lambda: [[]])
    touched: list[tuple[Range, bool]] = field(default_factory=list)
    """Plain data read (False) or written (True) since the last nop."""
    waited: bool = False
    """Whether only some threads have seen a signal since the last nop."""
    unflushed: dict[Endpoint, list[Range]] = field(default_factory=dict)
    """What port channels may still have to read."""
    named: set[tuple[PointChannel, Endpoint | RemoteName]] = field(default_factory=set)
    """Channels and remote buffers of the open threadblock."""

    def data(self, name: OpName, src: Sequence[Range], dst: Sequence[Range], end: Endpoint | None = None) -> None:
        """Copy or reduce with all threads; `end` is the channel to a remote destination."""
        local = [*((part, False) for part in src), *((part, True) for part in dst if part.rank == self.rank)]
        unread = [part for parts in self.unflushed.values() for part in parts]
        if any(part.meets(read) for part, written in local if written for read in unread):
            self.flush()
        if self.waited or any(
            part.meets(other) for part, written in local for other, before in self.touched if written or before
        ):
            self._nop()
        self._add(SymbolicOp(name, tuple(src), tuple(dst), () if end is None else (end,)))
        self.touched += local
        if end is not None and end.port:
            self.unflushed.setdefault(end, []).extend(src)

    def signal(self, end: Endpoint, *, relaxed: bool = False) -> None:
        """Signal to the other end that everything before is done."""
        self._together()
        self._join(SymbolicOp("rlxsignal" if relaxed else "signal", ends=(end,)))

    def wait(self, end: Endpoint, *, relaxed: bool = False) -> None:
        """Wait for the next signal of the other end."""
        self._join(SymbolicOp("rlxwait" if relaxed else "wait", ends=(end,)))
        self.waited = True

    def release(self, semaphores: Sequence[int]) -> None:
        """Signal to other threadblocks of the rank that everything before is done."""
        self.flush()
        self._together()
        self._add(SymbolicOp("sem_release", semaphores=tuple(semaphores)))

    def acquire(self, semaphores: Sequence[int]) -> None:
        """Wait for other threadblocks of the rank."""
        self._join(SymbolicOp("sem_acquire", semaphores=tuple(semaphores)))
        self.waited = True

    def flush(self) -> None:
        """Wait until port channels have read what every put sends."""
        for end in sorted(self.unflushed):
            self._append(SymbolicOp("flush", ends=(end,)))
            self.waited = True
        self.unflushed.clear()

    def _together(self) -> None:
        if self.touched or self.waited:
            self._nop()

    def _nop(self) -> None:
        self._append(SymbolicOp("nop"))
        self.touched.clear()
        self.waited = False

    def _join(self, entry: SymbolicOp) -> None:
        """Do `entry` in one operation with the last one where that does the same on channels of the same type."""
        last = self.pieces[-1][-1] if self.pieces[-1] else SymbolicOp("nop")
        kinds = {end.kind for end in (*last.ends, *entry.ends)}
        joint = SymbolicOp(entry.name, (), (), (*last.ends, *entry.ends), (*last.semaphores, *entry.semaphores))
        fits = len(kinds) < 2 and len(set(joint.ends)) == len(joint.ends) <= MAX_CHANNELS_PER_OP
        if last.name == entry.name and fits and self._fits(entry):
            self.pieces[-1][-1] = joint
            self.named |= _names(entry)
        else:
            self._add(entry)

    def _add(self, entry: SymbolicOp) -> None:
        """Append `entry`, in a new threadblock where this one has no room for it."""
        piece = self.pieces[-1]
        if len(piece) + CLOSING + len(self.unflushed) > MAX_OPS or not self._fits(entry):
            last, first = self.semaphores.link()
            self.flush()
            self._together()
            self._append(last)
            self.pieces.append([first, SymbolicOp("nop")])
            self.named.clear()
        self._append(entry)
        self.named |= _names(entry)

    def _fits(self, entry: SymbolicOp) -> bool:
        """Whether the open threadblock can name the channels and remote buffers of one more operation."""
        new = _names(entry) - self.named
        if len(self.named) + len(new) <= MAX_CHANNELS:
            return True
        counts = Counter((kind, type(name)) for kind, name in self.named | new)
        return max(counts.values()) <= MAX_CHANNELS

    def _append(self, entry: SymbolicOp) -> None:
        self.pieces[-1].append(entry)


def _names(entry: SymbolicOp) -> set[tuple[PointChannel, Endpoint | RemoteName]]:
    """The channels and remote buffers of an operation."""
    names: set[tuple[PointChannel, Endpoint | RemoteName]] = {(end.kind, end) for end in entry.ends}
    if entry.dst and entry.ends:
        kind, rank = entry.ends[0].kind, entry.ends[0].rank
        names |= {(kind, RemoteName(part.rank, _buffer(part))) for part in entry.dst if part.rank != rank}
    return names


def _remote(entries: Iterable[SymbolicOp], kind: PointChannel) -> list[RemoteName]:
    """(rank, buffer) of the remote buffers that operations reach through channels of one type."""
    return sorted(
        {
            RemoteName(part.rank, _buffer(part))
            for entry in entries
            if entry.dst and entry.ends and entry.ends[0].kind == kind
            for part in entry.dst
            if part.rank != entry.ends[0].rank
        }
    )


def _buffer(part: Range) -> BufferType:
    return "s" if part.space == "p" else part.space


def gpu_of(
    rank: int, sizes: tuple[int, int, int], lanes: Sequence[Lane], ends: Iterable[Endpoint], plain: int, semaphores: int
) -> Gpu:
    """The plan of one rank. `sizes` are input, output and scratch chunks; `ends` all its channel ends; `plain` is
    where plain data starts in a scratch of packets."""
    every = set(ends)
    channels = {kind: sorted((end for end in every if end.kind == kind), key=_channel_order) for kind in KINDS}
    pieces = [piece for lane in lanes for piece in lane.pieces if piece]
    remote: dict[RemoteName, set[PointChannel]] = {}
    for kind in KINDS:
        for entries in pieces:
            for buffer in _remote(entries, kind):
                remote.setdefault(buffer, set()).add(kind)
    numbers = {buffer: number for number, buffer in enumerate(sorted(remote))}
    return Gpu(
        id=rank,
        input_chunks=sizes[0],
        output_chunks=sizes[1],
        scratch_chunks=sizes[2],
        threadblocks=tuple(_block(index, piece, channels, numbers, plain) for index, piece in enumerate(pieces)),
        channels=tuple(
            (MemoryChannels if kind == "memory" else PortChannels)(tuple(end.peer for end in found))
            for kind, found in channels.items()
            if found
        ),
        remote_buffers=tuple(
            RemoteBuffer(peer, buffer, tuple(sorted(kinds))) for (peer, buffer), kinds in sorted(remote.items())
        ),
        semaphores=tuple(Semaphore(0) for _ in range(semaphores)),
    )


def _channel_order(end: Endpoint) -> tuple[int, int, int]:
    """The same for both ends of every channel between two ranks, so that the k-th meets the k-th."""
    return end.peer, end.connection.channel, end.connection.src


def _block(
    index: int,
    entries: Sequence[SymbolicOp],
    channels: dict[PointChannel, list[Endpoint]],
    buffers: dict[RemoteName, int],
    plain: int,
) -> ThreadblockPlan:
    used: dict[PointChannel, list[Endpoint]] = {
        kind: sorted({end for entry in entries for end in entry.ends if end.kind == kind}, key=_channel_order)
        for kind in KINDS
    }
    reached = {kind: _remote(entries, kind) for kind in KINDS}

    def chunks(entry: SymbolicOp, part: Range) -> Chunks:
        start = part.start + (plain if part.space == "s" else 0)
        if not entry.ends or part.rank == entry.ends[0].rank:
            return Chunks(type=_buffer(part), index=start, size=part.size)
        number = reached[entry.ends[0].kind].index(RemoteName(part.rank, _buffer(part)))
        return Chunks(buffer_id=number, index=start, size=part.size)

    def op(entry: SymbolicOp) -> PlanOperation:
        kind = entry.ends[0].kind if entry.ends else None
        named = kind is not None and (kind == "port" or not entry.src)
        return PlanOperation(
            name=entry.name,
            src_buff=tuple(chunks(entry, part) for part in entry.src),
            dst_buff=tuple(chunks(entry, part) for part in entry.dst),
            channel_ids=tuple(used[end.kind].index(end) for end in entry.ends) if named else (),
            channel_type=kind,
            reduce_op="sum" if len(entry.src) > 1 else None,
            semaphore_ids=entry.semaphores,
            barrier_id=entry.barrier,
            num_threadblocks=None if entry.barrier is None else 2,
        )

    return ThreadblockPlan(
        id=index,
        ops=tuple(map(op, entries)),
        channels=tuple(
            BlockChannels(kind, tuple(channels[kind].index(end) for end in ends)) for kind, ends in used.items() if ends
        ),
        remote_buffer_refs=tuple(
            BlockBuffers(kind, tuple(buffers[buffer] for buffer in found)) for kind, found in reached.items() if found
        ),
    )
