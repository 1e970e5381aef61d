"""Simulated time of any MSCCL XML program on a machine: threadblocks, message slots, links, ports.

The program is run as the public runtimes run it. The payload is cut into `chunks_per_loop` chunks; a chunk that exceeds
a slot of the protocol is cut into slices, and the whole program runs once per slice, every threadblock on its own. A
step of several chunks is one message, or several where they do not fit a slot.

- A threadblock takes `step_us` for a message, and its bytes at `threadblock_gbps` for each time it handles them: once
  to send or receive, twice to pass on, half a time more to add the summand; local copies and sums at `local_gbps`.
- A message leaves when a slot of its connection is free. It passes every link and port of its path, which serve
  messages first come first served at beta / efficiency times the bytes on the wire (LL doubles them); its sender is
  busy until the last is passed. It arrives alpha of the link and of the protocol later, and its receiver works on it
  for the last `overlap` of the time that sending takes.
- A slot is free again when the receiver has taken the message out.

Slices repeat, so only a few are run and their time per slice is extrapolated. Memory bandwidth, caches and the other
streams of the device are not modelled.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass

from treadle.codegen.collective import order
from treadle.codegen.collective.link_paths import LinkPath, paths_of
from treadle.codegen.collective.program import BlockStep, CollectiveProgram, Connection, Place
from treadle.codegen.collective.protocols import PROTOCOLS, piece_chunks
from treadle.codegen.interface import Timeline
from treadle.planner.documents.hardware import TEARING, Hardware, ProtocolCost, Transport
from treadle.planner.errors import CheckFailed, InputError
from treadle.planner.machine.nodes import expand
from treadle.planner.timeline.simulator import Resource, Schedule, Task

MB = 1 << 20
MAX_SLICES = 24
"""Slices that are run one by one; those in the middle give the time of each further one."""
MAX_MESSAGES = 150_000
"""Messages and local steps that are run at most, unless fewer than four slices come to more."""

TIMES = {"s": 1.0, "r": 1.0, "rcs": 2.0, "rrs": 2.0, "rrc": 1.5, "rrcs": 2.5}
"""How often a threadblock handles each byte of a message, in units of one send."""


@dataclass(frozen=True, slots=True)
class SimulatedTime:
    """`time_us` from the call to the last step's end. `busy` is the share of the time that a link or port works, by
    name; `threadblock` that of the busiest threadblock."""

    time_us: float
    slices: int
    chunk_bytes: float
    message_bytes: int
    busy: dict[str, float]
    threadblock: float
    moves: list[tuple[tuple[int, int], str, float, float]]
    """The slices that were run: (rank, threadblock), name, start and end in us of every message and local step."""

    def timeline(self) -> Timeline:
        """What was run, in ns; a resource for each threadblock that does anything."""
        names = {key: f"gpu {key[0]} tb {key[1]}" for key in sorted({move[0] for move in self.moves})}
        starts = [round(1000 * start) for _, _, start, _ in self.moves]
        ends = [round(1000 * end) for *_, end in self.moves]
        tasks = tuple(
            Task(move[1], end - start, (names[move[0]],))
            for move, start, end in zip(self.moves, starts, ends, strict=True)
        )
        resources = tuple(Resource(name) for name in names.values())
        return Timeline(tasks, resources, Schedule(starts, ends, max(ends, default=0), {}, {}))


def bus_factor(program: CollectiveProgram) -> float:
    """What turns size / time into the bandwidth that a link must carry, as the NCCL tests count it."""
    ranks = len(program.ranks)
    once = (ranks - 1) / ranks
    return {"allreduce": 2 * once}.get(
        program.collective, once if program.collective in ("allgather", "reducescatter", "alltoall") else 1.0
    )


def simulate_xml(
    program: CollectiveProgram, hardware: Hardware, size_bytes: int, max_messages: int | None = None
) -> SimulatedTime:
    """The time of `program` on `hardware` when its `chunks_per_loop` chunks together have `size_bytes` (the count that
    minBytes and maxBytes limit: the larger buffer of an allgather or reducescatter).
    `max_messages` (default: MAX_MESSAGES) bounds the work.

    `program` has passed its check. Raises InputError for a pair of ranks without a link, or whose link does not carry
    the protocol, and for more ranks than the machine has, CheckFailed for a program that never ends.
    """
    transport = hardware.transport or Transport()
    cost = transport.protocol(program.protocol)
    topology = expand(hardware)
    ranks = len(program.ranks)
    if ranks > topology.ranks:
        raise InputError(f"found {topology.ranks} ranks, expected at least the program's {ranks}", where=hardware.name)
    slot = cost.slot_bytes or PROTOCOLS[program.protocol].slot_bytes
    chunk = size_bytes / program.chunks_per_loop
    slices = max(1, -int(-chunk // slot))
    pairs = sorted({(c.src, c.dst) for c in order.connections(program)})
    paths = paths_of(pairs, topology, transport.link_efficiency, transport.device_gbps)
    if program.protocol == "LL128" and (torn := next((p for p, path in paths.items() if path.kind in TEARING), None)):
        raise InputError(
            f"found LL128, expected Simple or LL: gpu {torn[0]} sends to gpu {torn[1]} over {paths[torn].kind}, where "
            "128-byte stores may arrive in parts"
        )
    run = _Run(program, transport, cost, paths, chunk / slices, piece_chunks(round(chunk), slot))
    run.go(min(slices, MAX_SLICES, max(4, (max_messages or MAX_MESSAGES) // max(1, run.messages))))
    time = transport.launch_us + run.extrapolated(slices)
    spent = run.ends[-1] or 1.0
    return SimulatedTime(
        time_us=time,
        slices=slices,
        chunk_bytes=chunk,
        message_bytes=run.largest,
        busy={name: busy / spent for name, busy in sorted(run.worked.items())},
        threadblock=max((block.busy for block in run.blocks.values()), default=0.0) / spent,
        moves=run.record,
    )


@dataclass(slots=True)
class _Move:
    """One message or local step of a threadblock."""

    depends: tuple[tuple[int, int], int] | None
    received: Connection | None
    sent: Connection | None
    busy_us: float
    bytes: float
    ends: bool
    """Whether a step ends with it."""
    name: str


@dataclass(slots=True)
class _Block:
    moves: list[_Move]
    steps: int
    at: int = 0
    slice: int = 0
    free_us: float = 0.0
    busy: float = 0.0


class _Run:
    """The run of the first slices: times in us, everything in the order of time."""

    def __init__(
        self,
        program: CollectiveProgram,
        transport: Transport,
        cost: ProtocolCost,
        paths: dict[tuple[int, int], LinkPath],
        slice_bytes: float,
        piece: int,
    ) -> None:
        self.transport, self.cost, self.paths = transport, cost, paths
        self.wire = PROTOCOLS[program.protocol].wire
        self.slots = PROTOCOLS[program.protocol].slots
        self.blocks: dict[tuple[int, int], _Block] = {}
        self.ends: list[float] = []
        self.worked: dict[str, float] = defaultdict(float)
        self.largest = 0
        self.record: list[tuple[tuple[int, int], str, float, float]] = []
        for rank, index, block in program.blocks():
            moves: list[_Move] = []
            for at, step in enumerate(block.steps):
                place = Place(rank, index, at)
                received, sent = order.incoming(place, block, step), order.outgoing(place, block, step)
                moves += self._moves(rank, step, received, sent, slice_bytes, piece)
            self.blocks[rank, index] = _Block(moves, len(block.steps))
        self.messages = sum(len(block.moves) for block in self.blocks.values())

    def _moves(
        self,
        rank: int,
        step: BlockStep,
        received: Connection | None,
        sent: Connection | None,
        slice_bytes: float,
        piece: int,
    ) -> list[_Move]:
        depends = None if step.depends is None else ((rank, step.depends[0]), step.depends[1])
        if step.type == "nop":
            return [_Move(depends, None, None, 0.0, 0.0, True, "nop")]
        if received is None and sent is None:
            reads = {"cpy": 1.0, "re": 1.5, "ra": 2.0}[step.type]
            size = step.count * slice_bytes
            busy = self.transport.step_us + reads * size * 1e-3 / self.transport.local_gbps
            return [_Move(depends, None, None, busy, size, True, f"{step.type} {round(size)} B")]
        moves = []
        for first in range(0, step.count, piece):
            size = min(piece, step.count - first) * slice_bytes
            self.largest = max(self.largest, round(size))
            busy = self.transport.step_us + TIMES[step.type] * size * 1e-3 / self.cost.threadblock_gbps
            last = first + piece >= step.count
            name = f"{step.type} {round(size)} B"
            moves.append(_Move(depends if first == 0 else None, received, sent, busy, size, last, name))
        return moves

    def go(self, slices: int) -> None:
        passed: dict[tuple[int, int], list[float]] = {key: [] for key in self.blocks}
        arrived: dict[Connection, list[tuple[float, float]]] = defaultdict(list)  # its first and its last part
        taken: dict[Connection, list[float]] = defaultdict(list)
        sent: dict[Connection, int] = defaultdict(int)
        waiting: dict[object, list[tuple[int, int]]] = defaultdict(list)
        free: dict[str, float] = defaultdict(float)
        done = [0.0] * slices
        heap: list[tuple[float, tuple[int, int]]] = []
        overlap = self.cost.overlap

        def admit(key: tuple[int, int]) -> None:
            """Put the next move of a threadblock where it belongs: on the heap at its time, or behind an event."""
            block = self.blocks[key]
            move, time = block.moves[block.at], block.free_us
            if move.depends is not None:
                other, position = move.depends
                number = block.slice * self.blocks[other].steps + position
                if len(passed[other]) <= number:
                    waiting[other, number].append(key)
                    return
                time = max(time, passed[other][number])
            if move.received is not None:
                number = len(taken[move.received])
                if len(arrived[move.received]) <= number:
                    waiting["arrival", move.received].append(key)
                    return
                time = max(time, arrived[move.received][number][0])
            if move.sent is not None:
                number = sent[move.sent] - self.slots
                if number >= 0:
                    if len(taken[move.sent]) <= number:
                        waiting["room", move.sent].append(key)
                        return
                    time = max(time, taken[move.sent][number])
            heapq.heappush(heap, (time, key))

        for key, block in self.blocks.items():
            if block.moves:
                admit(key)
        while heap:
            time, key = heapq.heappop(heap)
            block = self.blocks[key]
            move = block.moves[block.at]
            end = time + move.busy_us
            if move.received is not None:
                last = arrived[move.received][len(taken[move.received])][1]
                end = max(end, last + (1 - overlap) * move.busy_us)
            if move.sent is not None:
                path = self.paths[move.sent.src, move.sent.dst]
                for name, per_byte in path.passes:
                    spent = move.bytes * self.wire * per_byte
                    free[name] = max(free[name], time) + spent
                    self.worked[name] += spent
                    end = max(end, free[name])
            block.busy += end - time
            self.record.append((key, move.name, time, end))
            block.free_us = end
            block.at += 1
            events: list[tuple[int, int]] = []
            if move.received is not None:
                taken[move.received].append(end)
                events += waiting.pop(("room", move.received), ())
            if move.sent is not None:
                sent[move.sent] += 1
                alpha = path.alpha_us + self.cost.alpha_us
                arrived[move.sent].append((end - overlap * move.busy_us + alpha, end + alpha))
                events += waiting.pop(("arrival", move.sent), ())
            if move.ends:
                passed[key].append(end)
                events += waiting.pop((key, len(passed[key]) - 1), ())
            if block.at == len(block.moves):
                done[block.slice] = max(done[block.slice], end)
                block.at, block.slice = 0, block.slice + 1
            if block.slice < slices:
                admit(key)
            for other in events:
                admit(other)
        if any(block.slice < slices for block in self.blocks.values() if block.moves):
            raise CheckFailed("the program never ends; `treadle check` says why")
        self.ends = done

    def extrapolated(self, slices: int) -> float:
        """The end of slice number `slices`, at the pace of the middle of those that were run: the first ones fill the
        pipeline, the last ones have it to themselves."""
        run = len(self.ends)
        if slices <= run:
            return self.ends[slices - 1]
        first, last = run // 4, max(run // 4 + 1, 3 * run // 4)
        return self.ends[-1] + (slices - run) * (self.ends[last] - self.ends[first]) / (last - first)
