"""MSCCL++ execution plans from collective programs: two-sided messages become one-sided puts.

With protocol Simple a message is a `put` and a `signal` by the sender and a `wait` by the receiver. It goes straight to
its destination if all earlier accesses of the receiver there happen before the send. All others, and those to be summed
up, go through one of SLOTS slots of scratch per connection, which the receiver signals free again. A first signal of
the receiver means that its kernel has begun and its buffers may be written.

With LL (and LL128) a message is packets in a slot of scratch of its own: data and flag arrive together, no signals are
needed. Scratch is double, so that a call does not meet the packets of the call before. A sender to which no message of
its receiver leads, directly or through others, waits at its end until the receiver has begun: it must not be two calls
ahead.

Ranks of one node reach each other through memory channels, others through port channels, which can only put. A
dependence between threadblocks is a semaphore per pair of them. Threadblocks are joined where that would take more
semaphores than there are, and cut where they have more operations than fit.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from msgspec import structs

from treadle.codegen.collective import order
from treadle.codegen.collective.happens_before import unordered
from treadle.codegen.collective.mscclpp.blocks import Endpoint, Lane, Range, Semaphores, gpu_of
from treadle.codegen.collective.mscclpp.document import MAX_BYTES, ExecutionPlan, dumps
from treadle.codegen.collective.program import BlockStep, Buffer, CollectiveProgram, Connection, Place
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions

SLOTS = 2
"""Messages in flight per connection; the least that fused rings can run with."""

GROUPINGS: tuple[Callable[[int, int], int], ...] = (
    lambda channel, block: block,
    lambda channel, block: channel,
    lambda channel, block: 0,
)
"""(channel, threadblock) -> whose steps share a threadblock: tried in this order are the program's own threadblocks,
one per channel, one per rank."""


NETWORKS = frozenset({"ib", "infiniband", "roce", "ethernet", "efa", "slingshot", "tcp"})
"""Kinds of links that are no GPU's to write through."""


def far_pairs(decisions: CollectiveDecisions) -> frozenset[tuple[int, int]]:
    """The ranks that only a network joins: (src, dst) of its links."""
    return frozenset((link.src, link.dst) for link in decisions.links if link.kind in NETWORKS)


def emit(program: CollectiveProgram, *, far: Collection[tuple[int, int]] = frozenset()) -> ExecutionPlan:
    """The plan of `program`; the pairs of ranks in `far` use port channels, in both directions, all others memory
    channels.

    Raises InputError when the program hangs on SLOTS slots, uses what MSCCL++ has not, or does not fit into its limits.
    """
    run = order.run(program, SLOTS)
    if run.stuck:
        raise InputError(f"the program hangs with {SLOTS} messages per connection at {program.spot(run.stuck[0])}")
    if any(ranked.copies for ranked in program.ranks) or any(step.type == "ra" for _, _, step in program.steps()):
        raise InputError("found copies before the first step or steps of type ra, which MSCCL++ has not")
    reasons = []
    lanes = [
        {(place.rank, grouping(block.channel, place.threadblock)) for place, block, _ in program.steps()}
        for grouping in GROUPINGS
    ]
    for number, grouping in enumerate(GROUPINGS):
        if number and len(lanes[number]) == len(lanes[number - 1]):
            continue
        try:
            return _Writer(program, run.sequence, grouping, far).plan()
        except InputError as error:
            reasons.append(str(error))
    raise InputError(
        f"{' and, with fewer threadblocks, '.join(dict.fromkeys(reasons))}; plan fewer instances or pieces"
    )


NOWHERE = Range(0, "i", 0, 0)


@dataclass(slots=True, eq=False)
class _Message:
    """One message. `target` is where it is put. With `credit` its sender first waits for a signal of the receiver: on
    the first one of a connection that it has begun, on others that a slot is free, which `frees` gives."""

    near: Endpoint
    far: Endpoint
    sent: Place
    received: Place
    step: BlockStep
    direct: bool = False
    target: Range = NOWHERE
    first: bool = False
    credit: bool = False
    frees: bool = False


class _Writer:
    """Writes one plan, step by step in an order in which the program can run."""

    def __init__(
        self,
        program: CollectiveProgram,
        sequence: Sequence[Place],
        grouping: Callable[[int, int], int],
        far: Collection[tuple[int, int]],
    ) -> None:
        self.program, self.sequence = program, sequence
        self.packets = program.protocol != "Simple"
        self.messages = _messages(program, far)
        self.outgoing = {message.sent: message for message in self.messages}
        self.incoming = {message.received: message for message in self.messages}
        self.scratch = [0 if self.packets else ranked.scratch_chunks for ranked in program.ranks]
        """Chunks of scratch given out, packets with LL."""
        self.spare = [ranked.scratch_chunks for ranked in program.ranks]
        """Chunks of plain data in a scratch of packets."""
        self.passing: dict[tuple[int, int], int] = {}
        """(rank, scratch chunk of the program) -> the packet it came as, for chunks that are only sent on."""
        self.summed = _plain_scratch(program)
        self.lanes: dict[tuple[int, int], Lane] = {}
        self.semaphores = [Semaphores(rank) for rank in range(len(program.ranks))]
        self.lane_of = {
            place: (place.rank, grouping(block.channel, place.threadblock)) for place, block, _ in program.steps()
        }
        for place in sequence:
            key = self.lane_of[place]
            self.lanes.setdefault(key, Lane(place.rank, self.semaphores[place.rank]))
        self.waits, self.releases = self._dependences()
        if self.packets:
            self._place_packets()
            self.unsynchronised = self._unsynchronised()
        else:
            self._place_slots()
            self.unsynchronised = set()

    def plan(self) -> ExecutionPlan:
        self._begin()
        for place in self.sequence:
            self._step(place)
        self._end()
        ends: list[set[Endpoint]] = [set() for _ in self.program.ranks]
        for message in self.messages:
            ends[message.near.rank].add(message.near)
            ends[message.far.rank].add(message.far)
        gpus = []
        for rank in range(len(self.program.ranks)):
            lanes = [lane for key, lane in sorted(self.lanes.items()) if key[0] == rank]
            scratch = self.scratch[rank] + (-(-self.spare[rank] // 2) if self.packets else 0)
            plain = 2 * self.scratch[rank] if self.packets else 0
            given, made = _sizes(self.program, rank)
            gpus.append(gpu_of(rank, (given, made, scratch), lanes, ends[rank], plain, self.semaphores[rank].count))
        plan = ExecutionPlan(
            name=self.program.name,
            collective=self.program.collective,
            protocol="LL" if self.packets else "Simple",
            inplace=self.program.inplace,
            gpus=tuple(gpus),
            use_double_scratch_buffer=self.packets,
            min_message_size=self.program.min_bytes,
            max_message_size=self.program.max_bytes or MAX_BYTES,
        )
        # The runtime keeps channels and scratch by the name of the plan, so two plans must not share one.
        mark = hashlib.sha256(dumps(plan).encode()).hexdigest()[:8]
        return structs.replace(plan, name=f"{plan.name}_{mark}")

    # What goes where.

    def _place_slots(self) -> None:
        """Decide which messages go straight to their place, and give the others slots of scratch."""
        direct = _direct(self.program, self.sequence, self.outgoing, self.incoming)
        slotted: dict[Connection, list[_Message]] = defaultdict(list)
        first: set[Connection] = set()
        for message in self.messages:
            message.first = message.credit = message.near.connection not in first
            first.add(message.near.connection)
            message.direct = message.received in direct
            if message.direct:
                message.target = self._range(message.received.rank, message.step.dst, message.step.count)
            else:
                slotted[message.near.connection].append(message)
        for messages in slotted.values():
            size, rank = max(message.step.count for message in messages), messages[0].received.rank
            for number, message in enumerate(messages):
                start = self.scratch[rank] + number % SLOTS * size
                message.target = Range(rank, "s", start, message.step.count)
                message.frees = number + SLOTS < len(messages)
                message.credit = message.credit or number >= SLOTS
            self.scratch[rank] += size * min(SLOTS, len(messages))

    def _place_packets(self) -> None:
        for message in self.messages:
            message.target = self._packets(message.received.rank, message.step.count)

    def _packets(self, rank: int, count: int) -> Range:
        self.scratch[rank] += count
        return Range(rank, "p", self.scratch[rank] - count, count)

    def _unsynchronised(self) -> set[Connection]:
        """Connections whose sender may end before the receiver began: no message leads back, directly or through
        others.

        Packets that are only sent on carry nothing to the threadblock of their receive, which does not read them.
        """
        known: dict[tuple[int, int], int] = defaultdict(int)
        unread: dict[tuple[int, int], int] = {}
        after: dict[Place, int] = {}
        for place in self.sequence:
            key = (place.rank, place.threadblock)
            step = self.program.step(place)
            known[key] |= 1 << place.rank
            if step.depends is not None:
                known[key] |= after[Place(place.rank, *step.depends)]
            if place in self.incoming:
                learned = after[self.incoming[place].sent]
                if step.type == "r" and self._kept(place, step):
                    unread |= {(place.rank, chunk): learned for chunk in _chunks(step.dst, step.count)}
                else:
                    known[key] |= learned
            elif step.src is not None and step.src[0] == "s":
                sent_on = [(place.rank, chunk) for chunk in _chunks(step.src, step.count)]
                if all(spot in unread for spot in sent_on):
                    known[key] |= reduce(or_, (unread[spot] for spot in sent_on))
            after[place] = known[key]
        begun = [0] * len(self.program.ranks)
        for (rank, _), ranks in known.items():
            begun[rank] |= ranks
        return {m.near.connection for m in self.messages if not begun[m.near.rank] >> m.far.rank & 1}

    def _kept(self, place: Place, step: BlockStep) -> bool:
        """Whether what a step of type r or rcs receives stays packets, to be sent on later."""
        return (
            step.dst is not None
            and step.dst[0] == "s"
            and not any((place.rank, chunk) in self.summed for chunk in _chunks(step.dst, step.count))
        )

    def _dependences(self) -> tuple[dict[Place, list[int]], dict[Place, list[int]]]:
        """Semaphores that each step acquires before and releases after it; one semaphore leads from each threadblock
        to each that waits for it, and counts."""
        position = {place: number for number, place in enumerate(self.sequence)}
        known: dict[tuple[tuple[int, int], tuple[int, int]], int] = {}
        numbers: dict[tuple[tuple[int, int], tuple[int, int]], int] = {}
        waits: dict[Place, list[int]] = defaultdict(list)
        releases: dict[Place, list[int]] = defaultdict(list)
        for place in self.sequence:
            depends = self.program.step(place).depends
            if depends is None:
                continue
            awaited = Place(place.rank, *depends)
            pair = self.lane_of[awaited], self.lane_of[place]
            if pair[0] != pair[1] and known.get(pair, -1) < position[awaited]:
                known[pair] = position[awaited]
                if pair not in numbers:
                    numbers[pair] = self.semaphores[place.rank].next()
                waits[place].append(numbers[pair])
                releases[awaited].append(numbers[pair])
        return waits, releases

    def _range(self, rank: int, operand: tuple[Buffer, int] | None, count: int) -> Range:
        assert operand is not None
        return Range(rank, operand[0], operand[1], count)

    # Operations.

    def _begin(self) -> None:
        signalled: set[Connection] = set()
        for message in self.messages:
            connection = message.far.connection
            if connection not in signalled and (not self.packets or connection in self.unsynchronised):
                self.lanes[self.lane_of[message.received]].signal(message.far, relaxed=True)
            signalled.add(connection)

    def _end(self) -> None:
        waited: set[Connection] = set()
        for message in self.messages:
            connection = message.near.connection
            if connection not in waited and connection in self.unsynchronised:
                self.lanes[self.lane_of[message.sent]].wait(message.near, relaxed=True)
            waited.add(connection)
        for lane in self.lanes.values():
            lane.flush()

    def _step(self, place: Place) -> None:
        lane, step = self.lanes[self.lane_of[place]], self.program.step(place)
        if place in self.waits:
            lane.acquire(self.waits[place])
        if step.type in ("cpy", "re"):
            source = self._range(place.rank, step.src, step.count)
            target = self._range(place.rank, step.dst, step.count)
            lane.data(*(("copy", [source], [target]) if step.type == "cpy" else ("re", [target, source], [target])))
        elif step.type != "nop":
            (self._packet_step if self.packets else self._signal_step)(lane, place, step)
        if place in self.releases:
            lane.release(self.releases[place])

    def _signal_step(self, lane: Lane, place: Place, step: BlockStep) -> None:
        received, sent = self.incoming.get(place), self.outgoing.get(place)
        if received is not None:
            lane.wait(received.far)
        if sent is not None and sent.credit:
            lane.wait(sent.near, relaxed=sent.first)
        port = sent is not None and sent.near.port
        if step.type in ("rrc", "rrs", "rrcs"):
            assert received is not None
            slot = received.target
            sources = [self._range(place.rank, step.src, step.count), slot]
            stored = slot if step.type == "rrs" else self._range(place.rank, step.dst, step.count)
            if sent is not None and not port:
                lane.data("res", sources, [stored, sent.target], sent.near)
            else:
                lane.data("re", sources, [stored])
            if sent is not None and port:
                lane.data("put", [stored], [sent.target], sent.near)
        else:
            source = None if step.type == "r" else step.src if step.type == "s" else step.dst
            if received is not None and not received.direct:
                lane.data("copy", [received.target], [self._range(place.rank, step.dst, step.count)])
            if sent is not None:
                lane.data("put", [self._range(place.rank, source, step.count)], [sent.target], sent.near)
        if sent is not None:
            lane.signal(sent.near)
        if received is not None and received.frees:
            if step.type == "rrs" and port:
                lane.flush()
            lane.signal(received.far)

    def _packet_step(self, lane: Lane, place: Place, step: BlockStep) -> None:
        received, sent = self.incoming.get(place), self.outgoing.get(place)
        rank, count = place.rank, step.count
        port = sent is not None and sent.near.port
        if received is None:
            assert sent is not None
            self._send(lane, self._range(rank, step.src, count), sent)
        elif step.type in ("r", "rcs"):
            target = self._range(rank, step.dst, count)
            if self._kept(place, step):
                for k in range(count):
                    self.passing[rank, target.start + k] = received.target.start + k
            else:
                lane.data("upkt", [received.target], [target])
            if sent is not None:
                lane.data("rppkt", [received.target], [sent.target], sent.near)
        else:
            sources = [self._range(rank, step.src, count), received.target]
            if step.type == "rrs":
                self.spare[rank] += count
                stored = Range(rank, "s", self.spare[rank] - count, count)
            else:
                stored = self._range(rank, step.dst, count)
            if sent is None:
                lane.data("repkt", sources, [stored])
            elif not port:
                lane.data("respkt", sources, [stored, sent.target], sent.near)
            else:
                staging = self._packets(rank, count)
                lane.data("recpkt", sources, [stored, staging])
                lane.data("rppkt", [staging], [sent.target], sent.near)

    def _send(self, lane: Lane, source: Range, sent: _Message) -> None:
        """Send as packets what is plain, or has come as packets."""
        passing = [self.passing.get((source.rank, source.start + k)) for k in range(source.size)]
        if source.space != "s" or None in passing:
            if sent.near.port:
                staging = self._packets(source.rank, source.size)
                lane.data("cpkt", [source], [staging])
                lane.data("rppkt", [staging], [sent.target], sent.near)
            else:
                lane.data("ppkt", [source], [sent.target], sent.near)
            return
        for k, packet in enumerate(passing):
            assert packet is not None
            target = Range(sent.target.rank, "p", sent.target.start + k, 1)
            lane.data("rppkt", [Range(source.rank, "p", packet, 1)], [target], sent.near)


def _chunks(operand: tuple[Buffer, int] | None, count: int) -> range:
    return range(0) if operand is None else range(operand[1], operand[1] + count)


def _messages(program: CollectiveProgram, far_pairs: Collection[tuple[int, int]]) -> list[_Message]:
    """Every message, connection by connection in order."""
    found = []
    for connection, ends in order.connections(program).items():
        port = connection[:2] in far_pairs or connection[1::-1] in far_pairs
        near = Endpoint(connection.src, connection.dst, connection, port)
        far = Endpoint(connection.dst, connection.src, connection, port)
        for sent, received in zip(ends.sends, ends.receives, strict=True):
            found.append(_Message(near, far, sent, received, program.step(received)))
    return found


def _plain_scratch(program: CollectiveProgram) -> set[tuple[int, int]]:
    """(rank, chunk) of the scratch that is summed up or copied, rather than only sent on."""
    found: set[tuple[int, int]] = set()
    for place, _, step in program.steps():
        if step.type in ("s", "r", "rcs", "nop"):
            continue
        for operand in (*step.reads, step.writes):
            if operand is not None and operand[0] == "s":
                found |= {(place.rank, operand[1] + k) for k in range(step.count)}
    return found


def _direct(
    program: CollectiveProgram,
    sequence: Sequence[Place],
    outgoing: dict[Place, _Message],
    incoming: dict[Place, _Message],
) -> set[Place]:
    """Receives whose data may be put where it belongs: whatever touched that place before happens before the send. What
    a port channel sends it may read until the other end has it."""
    written: dict[tuple[int, str, int], Place] = {}
    read: dict[tuple[int, str, int], list[Place]] = defaultdict(list)
    candidates: set[Place] = set()
    asked: list[tuple[Place, Place]] = []
    askers: list[Place] = []
    for place in sequence:
        step, message = program.step(place), incoming.get(place)
        stored = (
            [] if step.writes is None else [(place.rank, step.writes[0], step.writes[1] + k) for k in range(step.count)]
        )
        if message is not None and step.type in ("r", "rcs"):
            candidates.add(place)
            for address in stored:
                for earlier in (*read[address], *([written[address]] if address in written else ())):
                    asked.append((earlier, message.sent))
                    askers.append(place)
        sent = outgoing.get(place)
        done = sent.received if sent is not None and sent.near.port else place
        for operand in step.reads:
            for k in range(step.count):
                read[place.rank, operand[0], operand[1] + k].append(done)
        for address in stored:
            written[address] = place
            read[address] = [done] if done != place else []
    position = {place: number for number, place in enumerate(sequence)}
    late = [number for number, (earlier, sent) in enumerate(asked) if position[earlier] >= position[sent]]
    early = [number for number in range(len(asked)) if position[asked[number][0]] < position[asked[number][1]]]
    unsure = [early[index] for index in unordered(program, sequence, [asked[number] for number in early])]
    return candidates - {askers[number] for number in (*late, *unsure)}


def _sizes(program: CollectiveProgram, rank: int) -> tuple[int, int]:
    """Input and output chunks; the runtime divides by both, so a buffer that is not used counts as the other one."""
    ranked, part = program.ranks[rank], program.part_chunks
    given, made = ranked.input_chunks, ranked.output_chunks
    if program.inplace and program.collective in ("allgather", "gather"):
        given = given or part
    if program.inplace and program.collective in ("reducescatter", "scatter"):
        made = made or part
    return given or made or 1, made or given or 1
