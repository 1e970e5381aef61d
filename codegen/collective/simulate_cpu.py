"""Predicted time of one call of a program on the CPU runtime: a process of one thread for each rank.

Each action becomes streams of bytes (`treadle.planner.timeline.streams`), which start as soon as the chunks they touch
are free:

- A send copies its chunks into a ring in the memory of the host, or into the kernel for TCP; the receiver copies or
  adds out of it. Both take CPU time of their rank's thread for the message and for its bytes, and the threads share the
  cores of the host.
- Between hosts the bytes also pass the NICs at both ends and the uplinks between them, which all messages share.
- The receiver starts on the first piece, `latency_us` (and the alpha of the link) after it has left. A step that
  receives and sends passes piece after piece on.
- Messages of one pair of ranks leave one after the other.

`CpuTransport` of the hardware profile holds the costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from treadle.codegen.collective.actions import Action, TaggedMessage, actions, sequence_of
from treadle.codegen.collective.program import BlockStep, CollectiveProgram
from treadle.codegen.interface import Timeline
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.transports import CpuTransport, MessageCost
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import Topology, expand
from treadle.planner.timeline.simulator import Resource, Schedule, Task
from treadle.planner.timeline.streams import ByteStream, StreamTimes, run_streams

TERMS = {
    "call": "the start of a call",
    "messages": "the cost of each step and message",
    "latency": "latency",
    "copies": "copies",
    "sums": "sums",
    "links": "the rate of links",
}
"""What a predicted time consists of, in words."""


@dataclass(frozen=True, slots=True)
class CpuTime:
    """`time_us` is from the call to the end of the last rank; `streams` are what was run, rank by rank."""

    time_us: float
    streams: tuple[ByteStream, ...]
    times: StreamTimes

    def timeline(self) -> Timeline:
        """What was run, in ns; a resource for each thread, NIC and uplink."""
        names = sorted({_place(each) for each in self.streams})
        starts = [round(1000 * start) for start in self.times.start_us]
        ends = [round(1000 * end) for end in self.times.end_us]
        tasks = tuple(
            Task(each.name, end - start, (_place(each),))
            for each, start, end in zip(self.streams, starts, ends, strict=True)
        )
        resources = tuple(Resource(name) for name in names)
        return Timeline(tasks, resources, Schedule(starts, ends, max(ends, default=0), {}, {}))


def _place(stream: ByteStream) -> str:
    return stream.uses[0][0] if stream.uses else "latency"


def simulate_cpu(program: CollectiveProgram, hardware: Hardware, size_bytes: float) -> CpuTime:
    """The time of `program`, which has passed its check, on the CPU runtime when its `chunks_per_loop` chunks together
    have `size_bytes`.

    Raises InputError where the profile has no costs of that runtime, no link between two hosts that exchange, or fewer
    ranks than the program, CheckFailed for a program that never ends.
    """
    transport = hardware.transports.cpu
    if transport is None:
        raise InputError(
            "found no transports.cpu, expected the costs of the CPU runtime; `treadle profile measure --backend cpu` "
            "measures them",
            where=hardware.name,
        )
    ranks = len(program.ranks)
    if ranks > hardware.ranks:
        raise InputError(f"found {hardware.ranks} ranks, expected at least the program's {ranks}", where=hardware.name)
    made = _Streams(program, transport, _Machine(hardware, transport), size_bytes / program.chunks_per_loop)
    streams = tuple(made.all())
    times = run_streams(streams)
    return CpuTime(times.makespan_us, streams, times)


def terms_us(program: CollectiveProgram, hardware: Hardware, size_bytes: float) -> dict[str, float]:
    """By term: how much sooner the call would end if that cost nothing. They need not add up to the whole."""
    whole = simulate_cpu(program, hardware, size_bytes).time_us
    found = {}
    for term in TERMS:
        found[term] = whole - simulate_cpu(program, without(hardware, term), size_bytes).time_us
    return found


def without(hardware: Hardware, term: str) -> Hardware:
    """The profile where one of TERMS costs nothing."""
    cpu, network = hardware.transports.cpu, hardware.network
    assert cpu is not None
    paths = {"memory": cpu.memory, "tcp": cpu.between_hosts}
    match term:
        case "call":
            cpu = replace(cpu, call_us=0.0)
        case "messages":
            cpu = replace(cpu, step_us=0.0, **{name: replace(path, message_us=0.0) for name, path in paths.items()})
        case "latency":
            cpu = replace(cpu, **{name: replace(path, latency_us=0.0) for name, path in paths.items()})
            if network is not None:
                groups = tuple(replace(g, alpha_us=None) for g in network.groups)
                network = replace(network, alpha_us=0.0, groups=groups)
        case "copies":
            free = {name: replace(path, copy_us_per_MB=0.0) for name, path in paths.items()}
            cpu = replace(cpu, copy_us_per_MB=0.0, **free)
        case "sums":
            free = {name: replace(path, sum_us_per_MB=0.0) for name, path in paths.items()}
            cpu = replace(cpu, sum_us_per_MB=0.0, **free)
        case _:
            cpu = replace(cpu, link_efficiency=1.0)
            if network is not None:
                groups = tuple(replace(g, beta_us_per_MB=None) for g in network.groups)
                network = replace(network, beta_us_per_MB=1e-6, groups=groups, uplinks=())
    return replace(hardware, transports=replace(hardware.transports, cpu=cpu), network=network)


class _Machine:
    """What the streams of each rank use."""

    def __init__(self, hardware: Hardware, transport: CpuTransport) -> None:
        network = hardware.network
        self.transport, self.uplinks = transport, () if network is None else network.uplinks
        plain = hardware if network is None else replace(hardware, network=replace(network, uplinks=()))
        self.topology: Topology = expand(plain)
        self.links: dict[tuple[int, int], tuple[float, float]] = {}
        for link in self.topology.links:
            assert link.alpha_us is not None
            assert link.beta_us_per_MB is not None
            if self.host(link.src) != self.host(link.dst):
                found = (link.beta_us_per_MB, link.alpha_us)
                self.links[link.src, link.dst] = min(found, self.links.get((link.src, link.dst), found))
        nic = {rank: f"NIC {number}" for number, members in enumerate(self.topology.nics) for rank in members}
        self.nic = [nic.get(rank, f"NIC of rank {rank}") for rank in range(self.topology.ranks)]
        self.port: dict[str, float] = {}
        """us per MB of each direction of a NIC."""
        for (src, dst), (beta, _) in self.links.items():
            for port in (f"{self.nic[src]} out", f"{self.nic[dst]} in"):
                self.port[port] = min(beta, self.port.get(port, beta))

    def host(self, rank: int) -> int:
        return 0 if self.transport.hosts == "one" else self.topology.node(rank)

    def pool(self, rank: int) -> int:
        """The host whose cores and caches a rank uses."""
        return 0 if self.transport.cores_of == "machine" else self.host(rank)

    def thread(self, rank: int) -> tuple[tuple[str, float], ...]:
        """A rank's thread, and its share of the cores."""
        return (f"rank {rank}", 1.0), (f"cores {self.pool(rank)}", min(1.0, 1.0 / self.transport.cores))

    def path(self, src: int, dst: int) -> tuple[float, float, tuple[tuple[str, float], ...]]:
        """Between two hosts: us per MB, alpha, and the share of each NIC and uplink that a message takes."""
        if (src, dst) not in self.links:
            raise InputError(f"rank {src} sends to rank {dst}, between which the machine has no link")
        beta, alpha = self.links[src, dst]
        passed = {port: self.port[port] for port in (f"{self.nic[src]} out", f"{self.nic[dst]} in")}
        here, there = self.host(src), self.host(dst)
        for uplink in self.uplinks:
            if (here in uplink.nodes) != (there in uplink.nodes):
                direction = "out" if here in uplink.nodes else "in"
                passed[f"uplink {uplink.name} {direction}"] = uplink.beta_us_per_MB
        slowest = max(beta, *passed.values())
        uses = tuple((name, each / slowest) for name, each in passed.items())
        return slowest / self.transport.link_efficiency, alpha, uses


class _Streams:
    """The streams of one call, in the order of one sequence in which the program can run."""

    def __init__(
        self, program: CollectiveProgram, transport: CpuTransport, machine: _Machine, chunk_bytes: float
    ) -> None:
        self.program, self.cost, self.machine, self.chunk = program, transport, machine, chunk_bytes
        self.inplace = not program.outofplace
        self.made: list[ByteStream] = []
        self.ended: list[list[tuple[int, int]]] = [[] for _ in program.ranks]
        """By rank, for each action: the stream after which its value is there, and that after which it has left."""
        self.in_flight: dict[TaggedMessage, int] = {}
        """The last stream of each message that is sent."""
        self.slower = self._slower()

    def _slower(self) -> list[float]:
        """By rank: how much longer a local copy takes because the buffers do not fit caches."""
        held: dict[int, float] = defaultdict(float)
        for rank, own in enumerate(self.program.ranks):
            gathers = self.program.collective in ("allgather", "gather")
            own_chunks = own.input_chunks + own.output_chunks
            if self.inplace:
                own_chunks = own.output_chunks if gathers else own.input_chunks
            held[self.machine.pool(rank)] += (own_chunks + own.scratch_chunks) * self.chunk
        found = []
        for rank in range(len(self.program.ranks)):
            size, cache = held[self.machine.pool(rank)], self.cost.cache_bytes
            beyond = 0.0 if cache is None or size <= cache else 1 - cache / size
            found.append(1 + (self.cost.uncached - 1) * beyond)
        return found

    def all(self) -> Iterator[ByteStream]:
        sequence = sequence_of(self.program)
        for rank in range(len(self.program.ranks)):
            self.made.append(ByteStream(f"call of rank {rank}", self.cost.call_us, self.machine.thread(rank)))
        for action in actions(self.program, sequence, inplace=self.inplace):
            self._action(action)
        yield from self.made

    def _action(self, action: Action) -> None:
        rank, step, sent, ended = action.place.rank, action.step, action.sends, self.ended[action.place.rank]
        size = step.count * self.chunk
        # What it overwrites piece by piece it need not wait for.
        values = [other for other in action.after if other not in action.behind]
        waits = [ended[other][0] for other in values] + [ended[other][1] for other in action.after_leaving]
        after = tuple(dict.fromkeys(waits)) or (rank,)
        here: int | None = None
        reduces = step.type in ("rrc", "rrs", "rrcs", "re")
        if action.receives is not None:
            here = self._receive(rank, step, size, action.receives, after, reduces)
        elif sent is None:
            per_MB = self.slower[rank] * (self.cost.sum_us_per_MB if reduces else self.cost.copy_us_per_MB)
            here = self._work(f"{step.type} {size:.0f} B", rank, self.cost.step_us, size, per_MB, after)
        left = None if sent is None else self._send(rank, step, size, sent, after if here is None else (), here)
        value = left if here is None else here
        assert value is not None
        ended.append((value, value if left is None else left))

    def _cost_of(self, message: TaggedMessage) -> MessageCost:
        near = self.machine.host(message.src) == self.machine.host(message.dst)
        return self.cost.memory if near else self.cost.between_hosts

    def _receive(
        self, rank: int, step: BlockStep, size: float, message: TaggedMessage, after: tuple[int, ...], reduces: bool
    ) -> int:
        """Copy or add what arrives."""
        path = self._cost_of(message)
        near = self.machine.host(message.src) == self.machine.host(rank)
        per_MB = path.sum_us_per_MB if reduces else path.copy_us_per_MB
        delay = path.latency_us if near else path.latency_us + self.machine.path(message.src, rank)[1]
        fixed = self.cost.step_us + path.message_us
        name = f"{step.type} {size:.0f} B from {message.src}"
        return self._work(name, rank, fixed, size, per_MB, after, self.in_flight[message], delay)

    def _send(
        self, rank: int, step: BlockStep, size: float, sent: TaggedMessage, after: tuple[int, ...], behind: int | None
    ) -> int:
        """Returns the stream that reads the chunks; the message itself may take longer."""
        path, other = self._cost_of(sent), sent.dst
        fixed = path.message_us + (self.cost.step_us if behind is None else 0.0)
        pair = f"{rank} to {other}"
        name = f"{step.type} {size:.0f} B to {other}"
        copied = self._work(name, rank, fixed, size, path.copy_us_per_MB, after, behind, 0.0, pair)
        last = copied
        if self.machine.host(rank) != self.machine.host(other):
            per_MB, _, uses = self.machine.path(rank, other)
            time = size * per_MB / MEBIBYTE
            self.made.append(
                ByteStream(name, time, uses, (), copied, 0.0, self._piece(size), f"link {pair}"),
            )
            last = len(self.made) - 1
        self.in_flight[sent] = last
        return copied

    def _piece(self, size: float) -> float:
        return min(1.0, self.cost.piece_bytes / size) if size else 1.0

    def _work(
        self,
        name: str,
        rank: int,
        fixed_us: float,
        size: float,
        per_MB: float,
        after: tuple[int, ...],
        follows: int | None = None,
        delay_us: float = 0.0,
        queue: str | None = None,
    ) -> int:
        """A stream on a rank's thread; its number."""
        bytes_us = size * per_MB / MEBIBYTE
        work = fixed_us + bytes_us
        piece = (fixed_us + bytes_us * self._piece(size)) / work if work else 1.0
        uses = self.machine.thread(rank)
        self.made.append(ByteStream(name, work, uses, after, follows, delay_us, piece, queue))
        return len(self.made) - 1
