"""The independent checker of MSCCL++ execution plans, ours and other people's.

Three layers, each trusting the one before: the form of every operation and the limits of the runtime; the `nop`s that
keep the threads of a block together; and a symbolic execution in which a chunk is the multiset of contributions summed
into it. There signals meet waits, semaphores and barriers count, packets are awaited, vector clocks say which accesses
nothing orders, and the plan is looked at as one call of many: no rank touches the memory of another that may still be
in the call before, and none ends while others still work on its buffers. Shares no code with `mscclpp_json`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from treadle.codegen.collective.check import shortened
from treadle.codegen.collective.mscclpp.check_form import form_findings, nop_findings
from treadle.codegen.collective.mscclpp.document import BufferType, ExecutionPlan
from treadle.codegen.collective.mscclpp.tables import SHAPES, End, Flat, Operand, ResolvedPlan, operands_of
from treadle.codegen.collective.program import BUFFER_NAMES, home
from treadle.codegen.collective.symbolic import OUTPUTS, ROOTED, CallShape, ExpectedOutputs, Value

Address = tuple[int, str, int]
"""Rank, buffer, unit; a unit is a chunk, or what one threadblock of a group does of it. Values count units too."""
Clock = np.ndarray[tuple[int], np.dtype[np.int32]]


def check(plan: ExecutionPlan, expected: ExpectedOutputs | None = None) -> list[str]:
    """What is wrong with `plan`, one sentence each naming `gpu G tb T op N`; empty when it is right.

    `expected` are the required outputs, by default those of the plan's collective; a collective of another name has
    none, and everything else is still checked.
    """
    findings = form_findings(plan)
    if findings:
        return shortened(findings)
    findings = nop_findings(plan)
    if findings:
        return shortened(findings)
    run = _Run(plan)
    run.go()
    if run.stuck:
        return shortened(run.stuck)
    return shortened(list(dict.fromkeys([*run.findings, *run.after()]))) + shortened(list(_wrong(run, expected)))


class _Signal(NamedTuple):
    """What a signal or a released semaphore says: everything that happened before, and what of it may be read."""

    past: Clock
    visible: Clock


@dataclass(slots=True)
class _History:
    """Last write of a unit and the reads since, as lane -> time."""

    lane: int = -1
    time: int = 0
    spot: str = ""
    reads: dict[int, tuple[int, str]] = field(default_factory=dict)


class _Run:
    """One execution. Lanes are the threadblocks, then for each the transfers of its port channels, then the beginning
    of each rank's kernel. `past[t]` is what happened before the next operation of threadblock t, `visible[t]` what of
    it was published by something stronger than a relaxed signal."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan, self.tables = plan, ResolvedPlan(plan)
        self.blocks = self.tables.blocks
        self.units = self.tables.units
        count, ranks = len(self.blocks), len(plan.gpus)
        self.past = np.zeros((count, 2 * count + ranks), dtype=np.int32)
        for number, rank in enumerate(self.tables.rank_of):
            self.past[number, 2 * count + rank] = 1
        self.visible = self.past.copy()
        self.values: dict[Address, Value] = {}
        self.packets: dict[Address, Value] = {}
        self.history: dict[Address, _History] = defaultdict(_History)
        self.packet_past: dict[tuple[int, int], Clock] = {}
        self.arrived: dict[End, deque[_Signal]] = defaultdict(deque)
        self.users: dict[tuple[End, bool], tuple[int, int, str]] = {}
        self.semaphores: dict[tuple[int, int], deque[_Signal]] = {}
        self.barriers: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.passed: dict[int, int] = {}
        self.puts = [0] * count
        self.flushed = [0] * count
        self.must_flush = [0] * count
        """The last of a threadblock's puts through ports whose source another call may overwrite."""
        self.packet_puts: list[tuple[int, int, Flat]] = []
        """(threadblock, put, operation) of those from double scratch."""
        self.awaited: set[tuple[int, int]] = set()
        """(rank, unit) of packets that were read."""
        self.far_packets: dict[tuple[int, int], str] = {}
        self.findings: list[str] = []
        self.stuck: list[str] = []
        part = _part(plan)
        self.part = part
        empty = _Signal(np.zeros(2 * count + ranks, dtype=np.int32), np.zeros(2 * count + ranks, dtype=np.int32))
        for gpu in plan.gpus:
            for number, semaphore in enumerate(gpu.semaphores):
                self.semaphores[gpu.id, number] = deque([empty] * semaphore.init_value)
            for unit in range(gpu.input_chunks * self.units):
                self.values[self.address(gpu.id, "i", unit)] = ((gpu.id, unit),)

    def address(self, rank: int, buffer: str, unit: int) -> Address:
        if self.plan.inplace and buffer in ("i", "o"):
            chunk, rest = divmod(unit, self.units)
            kept: BufferType = "i" if buffer == "i" else "o"
            kept, chunk = home(self.plan.collective, self.part, rank, kept, chunk)
            return rank, kept, chunk * self.units + rest
        return rank, buffer, unit

    # Progress.

    def go(self) -> None:
        """Every threadblock as far as it can get; execution is confluent, so the order does not matter."""
        done = [0] * len(self.blocks)
        moved = True
        while moved:
            moved = False
            for number, ops in enumerate(self.blocks):
                while done[number] < len(ops) and not self.obstacle(number, ops[done[number]]):
                    self.execute(number, ops[done[number]])
                    done[number] += 1
                    moved = True
        for number, ops in enumerate(self.blocks):
            if done[number] < len(ops):
                flat = ops[done[number]]
                self.stuck.append(f"{flat.spot}: deadlock: {self.obstacle(number, flat)}")

    def obstacle(self, number: int, flat: Flat) -> str:
        """What the operation waits for, empty when it can run."""
        op, rank = flat.op, self.tables.rank_of[number]
        if op.name in ("wait", "rlxwait"):
            for end in flat.ends:
                if not self.arrived[end]:
                    return f"waits for a signal of gpu {self.tables.peer(end)}"
        if op.name == "sem_acquire":
            for semaphore in op.semaphore_ids:
                if not self.semaphores[rank, semaphore]:
                    return f"waits for semaphore {semaphore}"
        if op.name == "barrier" and number not in self.passed:
            assert op.barrier_id is not None
            members = self.barriers[rank, op.barrier_id]
            members.add(number)
            if len(members) < (op.num_threadblocks or 0):
                return f"waits at barrier {op.barrier_id}, where {len(members)} of {op.num_threadblocks} are"
            past, visible = self.past[sorted(members)].max(axis=0), self.visible[sorted(members)].max(axis=0)
            for member in members:
                self.past[member], self.visible[member] = past, visible
                self.passed[member] = op.barrier_id
            members.clear()
        for operand in operands_of(flat, self.units):
            if operand.packets and not operand.written:
                for unit in operand.units:
                    if (operand.rank, "p", unit) not in self.packets:
                        return f"waits for a packet of scratch chunk {unit // self.units}"
        return ""

    def execute(self, number: int, flat: Flat) -> None:
        op, rank, count = flat.op, self.tables.rank_of[number], len(self.blocks)
        time = int(self.past[number, number]) + 1
        self.past[number, number] = self.visible[number, number] = time
        if op.name == "barrier":
            del self.passed[number]
        elif op.name in ("wait", "rlxwait"):
            for end in flat.ends:
                self.turns(number, flat, end, waits=True)
                self.join(number, self.arrived[end].popleft(), relaxed=op.name == "rlxwait")
        elif op.name == "sem_acquire":
            for semaphore in op.semaphore_ids:
                self.join(number, self.semaphores[rank, semaphore].popleft(), relaxed=False)
        elif op.name == "sem_release":
            for semaphore in op.semaphore_ids:
                self.semaphores[rank, semaphore].append(self.says(number))
        elif op.name == "flush":
            self.past[number, count + number] = self.visible[number, count + number] = self.flushed[number] = self.puts[
                number
            ]
        elif op.name in SHAPES:
            if op.channel_type == "port":
                self.puts[number] += 1
                sources = [part for part in operands_of(flat, self.units) if not part.written]
                if self.plan.use_double_scratch_buffer and all(part.packets for part in sources):
                    self.packet_puts.append((number, self.puts[number], flat))
                else:
                    self.must_flush[number] = self.puts[number]
            self.transfer(number, flat, time)
        if op.name in ("signal", "rlxsignal", "pws", "pwsf"):
            self.signal(number, flat)
        if op.name == "pwsf":
            self.flushed[number] = self.puts[number]
            self.past[number, count + number] = self.visible[number, count + number] = self.puts[number]

    def says(self, number: int) -> _Signal:
        return _Signal(self.past[number].copy(), self.visible[number].copy())

    def join(self, number: int, signal: _Signal, *, relaxed: bool) -> None:
        np.maximum(self.past[number], signal.past, out=self.past[number])
        if not relaxed:
            np.maximum(self.visible[number], signal.visible, out=self.visible[number])

    def signal(self, number: int, flat: Flat) -> None:
        for end in flat.ends:
            far = self.tables.other(end)
            if far is None:
                self.findings.append(
                    f"{flat.spot}: signals gpu {self.tables.peer(end)}, which has no channel to wait on"
                )
                continue
            self.turns(number, flat, far, waits=False)
            said = self.says(number)
            if flat.op.channel_type == "port":
                said.past[len(self.blocks) + number] = said.visible[len(self.blocks) + number] = self.puts[number]
            if flat.op.name == "rlxsignal":
                said.visible[:] = 0
            self.arrived[far].append(said)

    def turns(self, number: int, flat: Flat, end: End, *, waits: bool) -> None:
        """The ends of a channel count in memory: threadblocks may use one only one after the other."""
        before, time, spot = self.users.get((end, waits), (number, 0, ""))
        if not self.knows(self.past[number], number, before, time):
            verb = "waits" if waits else "signals"
            self.findings.append(f"{flat.spot}: {verb} on the channel of {spot}, and nothing orders the two")
        self.users[end, waits] = number, int(self.past[number, number]), flat.spot

    # Data.

    def transfer(self, number: int, flat: Flat, time: int) -> None:
        """Read all sources, then write all destinations; with several sources and one result they are summed up."""
        count, port = len(self.blocks), flat.op.channel_type == "port"
        lane, when = (count + number, self.puts[number]) if port else (number, time)
        parts = operands_of(flat, self.units)
        sources = [part for part in parts if not part.written]
        targets = [part for part in parts if part.written]
        read = [self.read(number, flat, part, lane, when) for part in sources]
        if flat.op.name in ("put", "pws", "pwsf", "get", "ppkt"):
            results = read
        else:
            summed = [self.add(flat, terms) for terms in zip(*read, strict=True)]
            results = [summed] * len(targets)
        for part, values in zip(targets, results, strict=True):
            self.write(number, flat, part, values, lane, when)

    def read(self, number: int, flat: Flat, part: Operand, lane: int, when: int) -> list[Value]:
        if part.packets:
            for unit in part.units:
                np.maximum(self.past[number], self.packet_past[part.rank, unit], out=self.past[number])
            self.awaited.update((part.rank, unit) for unit in part.units)
            return [self.packets[part.rank, "p", unit] for unit in part.units]
        values = []
        for unit in part.units:
            address = self.address(part.rank, part.buffer, unit)
            self.begun(number, flat, part.rank)
            history = self.history[address]
            if history.lane >= 0 and not self.knows(self.visible[number], number, history.lane, history.time):
                self.race(flat, "reads", address, history.spot, "writes")
            history.reads[lane] = (when, flat.spot)
            if address not in self.values:
                name = BUFFER_NAMES[address[1]]  # type: ignore[index]
                self.findings.append(
                    f"{flat.spot}: reads {name} chunk {unit // self.units} of gpu {part.rank}, which nothing wrote"
                )
            values.append(self.values.get(address, ()))
        return values

    def write(self, number: int, flat: Flat, part: Operand, values: list[Value], lane: int, when: int) -> None:
        rank = self.tables.rank_of[number]
        for unit, value in zip(part.units, values, strict=True):
            if part.packets:
                key = (part.rank, "p", unit)
                if key in self.packets:
                    self.findings.append(
                        f"{flat.spot}: writes packet {unit // self.units} of gpu {part.rank} a second time in one call"
                    )
                if part.rank != rank:
                    self.far_packets.setdefault((rank, part.rank), flat.spot)
                    if not self.plan.use_double_scratch_buffer:
                        self.begun(number, flat, part.rank)
                self.packets[key] = value
                self.packet_past[part.rank, unit] = self.past[number].copy()
                continue
            address = self.address(part.rank, part.buffer, unit)
            if address[1] == "i" and not self.plan.inplace and self.plan.collective in SPECIFIED:
                self.findings.append(
                    f"{flat.spot}: overwrites input chunk {unit // self.units}, which an out-of-place call must keep"
                )
            self.begun(number, flat, part.rank)
            history = self.history[address]
            if history.lane >= 0 and not self.knows(self.past[number], number, history.lane, history.time):
                self.race(flat, "writes", address, history.spot, "writes")
            for other, (time, spot) in history.reads.items():
                if not self.knows(self.past[number], number, other, time):
                    self.race(flat, "writes", address, spot, "reads")
            self.history[address] = _History(lane, when, flat.spot)
            self.values[address] = value

    def knows(self, clock: Clock, number: int, lane: int, time: int) -> bool:
        return lane == number or bool(clock[lane] >= time)

    def begun(self, number: int, flat: Flat, rank: int) -> None:
        if not self.past[number, 2 * len(self.blocks) + rank]:
            self.findings.append(f"{flat.spot}: touches memory of gpu {rank}, which may not have begun the call")

    def add(self, flat: Flat, terms: tuple[Value, ...]) -> Value:
        value = tuple(sorted(label for term in terms for label in term))
        if len(value) > 2 * len(self.plan.gpus):
            self.findings.append(f"{flat.spot}: adds up {len(value)} contributions of {len(self.plan.gpus)} gpus")
            return value[: 2 * len(self.plan.gpus)]
        return value

    def race(self, flat: Flat, verb: str, address: Address, spot: str, other: str) -> None:
        name = BUFFER_NAMES[address[1]]  # type: ignore[index]
        self.findings.append(
            f"{flat.spot}: data race: {verb} {name} chunk {address[2] // self.units} of gpu {address[0]} while "
            f"{spot} {other} it, and nothing orders the two"
        )

    # The end of the call.

    def after(self) -> Iterator[str]:
        for end, signals in sorted(self.arrived.items()):
            if signals:
                yield f"gpu {end[0]}: {len(signals)} signals of gpu {self.tables.peer(end)} are never waited for"
        for (rank, number), tokens in sorted(self.semaphores.items()):
            if len(tokens) != (wanted := self.plan.gpus[rank].semaphores[number].init_value):
                yield f"gpu {rank}: semaphore {number} ends as {len(tokens)}, the next call expects {wanted}"
        # A port that puts packets out of double scratch has the next call for it: none begins a third before all that
        # were put in the first have come, where they are awaited and `far_packets` has the others.
        late = {
            number
            for number, put, flat in self.packet_puts
            for part in operands_of(flat, self.units)
            if part.written and put > self.flushed[number]
            if not self.awaited.issuperset((part.rank, unit) for unit in part.units)
        }
        late |= {number for number, put in enumerate(self.must_flush) if put > self.flushed[number]}
        for number in sorted(late):
            last = self.blocks[number][-1]
            yield f"{last.spot}: ends while its port channels may still read what they put; a flush is missing"
        ends: list[Clock] = []
        for rank in range(len(self.plan.gpus)):
            mine = [number for number, owner in enumerate(self.tables.rank_of) if owner == rank]
            ends.append(self.past[mine].max(axis=0) if mine else np.zeros(self.past.shape[1], dtype=np.int32))
        count = len(self.blocks)
        for (rank, far), spot in sorted(self.far_packets.items()):
            if self.plan.use_double_scratch_buffer and not ends[rank][2 * count + far]:
                yield (
                    f"{spot}: no message of gpu {far} reaches gpu {rank}, so it may be two calls ahead and overwrite "
                    "packets that were not read"
                )
        for (rank, buffer, unit), history in sorted(self.history.items()):
            touches = [(history.lane, history.time, history.spot, "writes")] if history.lane >= 0 else []
            touches += [(lane, time, spot, "reads") for lane, (time, spot) in sorted(history.reads.items())]
            for lane, time, spot, verb in touches:
                owner = self.tables.rank_of[lane - count if lane >= count else lane]
                if owner != rank and ends[rank][lane] < time:
                    name = BUFFER_NAMES[buffer]  # type: ignore[index]
                    yield f"gpu {rank} may end the call while {spot} {verb} its {name} chunk {unit // self.units}"


SPECIFIED = frozenset(OUTPUTS)
"""Collectives whose name determines the outputs."""


def _part(plan: ExecutionPlan) -> int:
    """Chunks of one rank's part: what in-place calls count their offsets in."""
    given = min(gpu.input_chunks for gpu in plan.gpus)
    made = min(gpu.output_chunks for gpu in plan.gpus)
    return {"allgather": given, "gather": given, "reducescatter": made, "scatter": made}.get(plan.collective, given)


def _wrong(run: _Run, expected: ExpectedOutputs | None) -> Iterator[str]:
    """Compare the output with what is promised; a plan does not say its root, so the best one is taken."""
    plan, units = run.plan, run.units
    if expected is not None:
        wanted = {
            (rank, chunk * units + k): tuple((source, index * units + k) for source, index in value)
            for (rank, chunk), value in expected.items()
            for k in range(units)
        }
        yield from _differences(run, wanted)
    elif plan.collective in SPECIFIED:
        roots = range(len(plan.gpus) if plan.collective in ROOTED else 1)
        tries = [list(_differences(run, _expected(run, root))) for root in roots]
        yield from min(tries, key=len)


def _differences(run: _Run, wanted: Mapping[tuple[int, int], Value]) -> Iterator[str]:
    for (rank, unit), value in sorted(wanted.items()):
        address = run.address(rank, "o", unit)
        found = run.values.get(address)
        if found != value:
            spot = run.history[address].spot or f"gpu {rank}"
            ends, expected = _describe(run, found), _describe(run, value)
            yield f"{spot}: output chunk {unit // run.units} of gpu {rank} ends as {ends}, expected {expected}"


def _describe(run: _Run, value: Value | None) -> str:
    if not value:
        return "nothing"
    names = [f"input chunk {unit // run.units} of gpu {rank}" for rank, unit in value[:3]]
    return names[0] if len(value) == 1 else f"the sum of {len(value)} parts: " + ", ".join(names)


def _expected(run: _Run, root: int) -> dict[tuple[int, int], Value]:
    """(rank, output unit) -> value, for the collective by its name."""
    plan, collective = run.plan, run.plan.collective
    result: dict[tuple[int, int], Value] = {}
    for rank, gpu in enumerate(plan.gpus):
        size = gpu.output_chunks * run.units
        part = size // len(plan.gpus) if collective == "alltoall" else run.part * run.units
        shape = CallShape(len(plan.gpus), part, root)
        for unit in range(min(size, part) if collective in ("reducescatter", "scatter") else size):
            if (value := OUTPUTS[collective](shape, rank, unit)) is not None:
                result[rank, unit] = value
    return result
