"""Predicted time of one call of a program as rounds of grouped sends and receives (`rounds`).

Each rank works through its rounds: waves of local work, then a group. A message begins when the groups of both its
ends have begun, takes the alpha of its path and then its bytes, which share links and ports with all others of that
time (`treadle.planner.timeline.streams`). The group ends with its last message. `GroupedTransport` of the profile holds
what the library itself costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from treadle.codegen.collective.link_paths import LinkPath, paths_of
from treadle.codegen.collective.program import CollectiveProgram
from treadle.codegen.collective.rounds import RankRounds, Round, most_of, rounds_of
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.transports import GroupedTransport
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import expand
from treadle.planner.timeline.streams import ByteStream, StreamTimes, run_streams

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class GroupedTime:
    """`time_us` is from the call to the end of the last rank; `rounds` and `messages` are those of the rank with the
    most."""

    time_us: float
    rounds: int
    messages: int
    streams: tuple[ByteStream, ...]
    times: StreamTimes


def simulate_rounds(program: CollectiveProgram, hardware: Hardware, size_bytes: float) -> GroupedTime:
    """The time of `program`, which has passed its check, when its `chunks_per_loop` chunks together have `size_bytes`.

    Raises InputError where the profile has no costs of grouped messages, no link between two ranks that exchange, or
    fewer ranks than the program, CheckFailed for a program that never ends.
    """
    transport = hardware.transports.nccl
    if transport is None:
        raise InputError("found no transports.nccl, expected the costs of grouped messages", where=hardware.name)
    if len(program.ranks) > hardware.ranks:
        raise InputError(
            f"found {hardware.ranks} ranks, expected at least the program's {len(program.ranks)}", where=hardware.name
        )
    ranks = rounds_of(program, inplace=not program.outofplace)
    pairs = sorted({(rank, peer) for rank, own in enumerate(ranks) for each in own.rounds for peer, _ in each.sends})
    paths = paths_of(pairs, expand(hardware), transport.link_efficiency)
    streams = _Streams(transport, paths, size_bytes / program.chunks_per_loop).made(ranks)
    times = run_streams(streams)
    return GroupedTime(
        times.makespan_us,
        *most_of(ranks),
        streams,
        times,
    )


@dataclass(slots=True)
class _Node:
    """A stream, whose `after` grows until all are there."""

    name: str
    work_us: float
    uses: tuple[tuple[str, float], ...] = ()
    after: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Streams:
    transport: GroupedTransport
    paths: dict[Pair, LinkPath]
    chunk: float
    """Bytes of a chunk."""
    nodes: list[_Node] = field(default_factory=list)

    def made(self, ranks: Sequence[RankRounds]) -> tuple[ByteStream, ...]:
        first: dict[Pair, int] = {}
        """By rank and round: its first stream."""
        begun: dict[Pair, int] = {}
        """The stream after which its group has begun."""
        sent: dict[Pair, list[tuple[int, int]]] = defaultdict(list)
        received: dict[Pair, list[int]] = defaultdict(list)
        """By sender and receiver: the rounds of the messages, and their chunks."""
        for rank, own in enumerate(ranks):
            last = self._add(f"call of gpu {rank}", self.transport.call_us)
            for number, each in enumerate(own.rounds):
                first[rank, number] = len(self.nodes)
                last = begun[rank, number] = self._begin(rank, number, each, last)
                for peer, place in each.sends:
                    sent[rank, peer].append((number, place[2]))
                for peer, _ in each.receives:
                    received[peer, rank].append(number)
        for (src, dst), messages in sorted(sent.items()):
            for (number, count), other in zip(messages, received[src, dst], strict=True):
                last = self._message(src, dst, count * self.chunk, [begun[src, number], begun[dst, other]])
                for rank, at in ((src, number), (dst, other)):
                    if (rank, at + 1) in first:
                        self.nodes[first[rank, at + 1]].after.append(last)
        return tuple(ByteStream(each.name, each.work_us, each.uses, tuple(each.after)) for each in self.nodes)

    def _begin(self, rank: int, number: int, each: Round, last: int) -> int:
        """The streams of a round before its messages; returns the last one."""
        device = ((f"gpu {rank}", 1.0),)
        waves: dict[int, float] = defaultdict(float)
        for work in each.local:
            waves[work.wave] += work.target[2] * self.chunk
        for wave, size in waves.items():
            time = self.transport.local_us + size / self.transport.local_gbps / 1e3
            last = self._add(f"local work {wave} of gpu {rank} round {number}", time, device, last)
        messages = len(each.sends) + len(each.receives)
        if messages or not waves:
            time = self.transport.group_us + self.transport.message_us * (messages - 1)
            last = self._add(f"group of gpu {rank} round {number}", time, device, last)
        return last

    def _message(self, src: int, dst: int, size: float, after: list[int]) -> int:
        path = self.paths[src, dst]
        slowest = max(per_byte for _, per_byte in path.passes)
        uses = tuple((name, per_byte / slowest) for name, per_byte in path.passes)
        self.nodes.append(_Node(f"latency {src} to {dst}", path.alpha_us, (), after))
        return self._add(f"{size:.0f} B {src} to {dst}", size * slowest, uses, len(self.nodes) - 1)

    def _add(
        self, name: str, work_us: float, uses: tuple[tuple[str, float], ...] = (), after: int | None = None
    ) -> int:
        self.nodes.append(_Node(name, work_us, uses, [] if after is None else [after]))
        return len(self.nodes) - 1
