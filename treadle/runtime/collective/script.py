"""One rank's part of a program as a list of actions, and what may go without a copy.

All ranks follow one sequence of the whole program that `treadle.codegen.collective.order` found to end on bounded
FIFOs, each its own part of it. A receive goes straight to where its chunks belong, and is posted as soon as nothing
uses that place any more; a send leaves straight from where its chunks are, and what overwrites them waits for it. That
is safe where the sequence has the matching receive before the overwriting step: everything up to there can happen.
Elsewhere the chunks of a send pass through a slot, as every message does in the public runtimes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from treadle.codegen.collective import order
from treadle.codegen.collective.program import BlockStep, CollectiveProgram, Connection, Place, home
from treadle.planner.errors import CheckFailed

Range = tuple[str, int, int]
"""(buffer, first chunk, number of chunks)."""
_End = tuple[Connection, int] | None
"""One end of a message: its connection, and its number there."""
_Timed = tuple[int, BlockStep, _End, _End]
"""A step with its position in the sequence, what it receives and what it sends."""


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """One end of a message: the peer, a tag that no other message of the connection has, and its number of chunks.
    `slot` is the number of the buffer that it passes through, None where it goes without."""

    peer: int
    tag: int
    count: int
    slot: tuple[Connection, int] | None


@dataclass(frozen=True, slots=True)
class Action:
    """One step, in this order: wait until the messages of `waits` are sent and those of `needs` are received; post the
    receives of `posts`; combine the terms (`reads`, and what arrived) into `writes`; send the result. A received
    message that is not used yet is not waited for."""

    step: BlockStep
    posts: tuple[int, ...]
    """Actions whose receive is posted here."""
    waits: tuple[int, ...]
    """Earlier actions whose send must have finished."""
    needs: tuple[int, ...]
    """Actions whose receive must have finished; this one among them, once it is posted, if it uses what arrives."""
    reads: tuple[Range, ...]
    writes: Range | None
    receives: MessageEnd | None
    sends: MessageEnd | None


def script_of(program: CollectiveProgram, rank: int, *, inplace: bool, fifo_depth: int) -> tuple[Action, ...]:
    """The actions of `rank`. Raises CheckFailed when the program never ends."""
    run = order.run(program, fifo_depth)
    if run.stuck:
        raise CheckFailed("the program never ends; `treadle check` says why")
    received = _receive_times(program, run.sequence)
    mine = [(time, place) for time, place in enumerate(run.sequence) if place.rank == rank]
    return _Analysis(program, rank, inplace, fifo_depth, received).actions(mine)


def _receive_times(program: CollectiveProgram, sequence: Sequence[Place]) -> dict[Connection, list[int]]:
    """By connection: when its messages are received, as positions in the sequence."""
    times: dict[Connection, list[int]] = defaultdict(list)
    for time, place in enumerate(sequence):
        block = program.ranks[place.rank].threadblocks[place.threadblock]
        connection = order.incoming(place, block, block.steps[place.step])
        if connection is not None:
            times[connection].append(time)
    return times


class _Analysis:
    """One walk over a rank's steps; `last` is the latest access of a chunk, `leaving` the sends that still read it."""

    def __init__(
        self,
        program: CollectiveProgram,
        rank: int,
        inplace: bool,
        fifo_depth: int,
        received: dict[Connection, list[int]],
    ) -> None:
        self.program, self.rank, self.inplace, self.depth = program, rank, inplace, fifo_depth
        self.received = received
        self.last: dict[tuple[str, int], int] = {}
        self.leaving: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.arrives: dict[int, int] = {}
        """When the message that an action sends is received."""
        self.copied: set[int] = set()
        """Actions whose send passes through a slot."""
        self.due: dict[tuple[str, int], int] = {}
        """By chunk: the action that receives it, until an action waits for that."""

    def range(self, operand: tuple[str, int], count: int) -> Range:
        buffer, index = operand
        if self.inplace:
            buffer, index = home(self.program.collective, self.program.part_chunks, self.rank, buffer, index)  # type: ignore[arg-type]
        return buffer, index, count

    def actions(self, mine: Sequence[tuple[int, Place]]) -> tuple[Action, ...]:
        steps: list[_Timed] = []
        numbers: dict[Connection, int] = defaultdict(int)

        def end(connection: Connection | None) -> _End:
            if connection is None:
                return None
            numbers[connection] += 1
            return connection, numbers[connection] - 1

        for time, place in mine:
            block = self.program.ranks[self.rank].threadblocks[place.threadblock]
            step = block.steps[place.step]
            if step.type == "nop":
                continue
            received, sent = order.incoming(place, block, step), order.outgoing(place, block, step)
            steps.append((time, step, end(received), end(sent)))
        reads = [tuple(self.range(operand, step.count) for operand in step.reads) for _, step, _, _ in steps]
        writes = [None if step.writes is None else self.range(step.writes, step.count) for _, step, _, _ in steps]
        waits: list[tuple[int, ...]] = []
        needs: list[tuple[int, ...]] = []
        ready: dict[int, int] = {}
        for index, (time, _, receives, sends) in enumerate(steps):
            used, target = reads[index], writes[index]
            needed: set[int] = set()
            clear = 0
            for chunk in _chunks(target):
                clear = max(clear, self.last.get(chunk, -1) + 1)
                for send in self.leaving.pop(chunk, ()):
                    (needed if self.arrives[send] < time else self.copied).add(send)
            waits.append(tuple(sorted(needed)))
            touched = [chunk for place in (*used, target) for chunk in _chunks(place)]
            awaited = {self.due.pop(chunk) for chunk in touched if chunk in self.due}
            if receives is not None and target is not None and not used:
                ready[index] = index if needed or awaited else clear
            if index in ready and sends is None:
                self.due |= dict.fromkeys(_chunks(target), index)
            elif receives is not None:
                awaited.add(index)
            needs.append(tuple(sorted(awaited)))
            self.last |= dict.fromkeys(touched, index)
            if sends is not None:
                self.arrives[index] = self.received[sends[0]][sends[1]]
                source = target or (used[0] if receives is None and len(used) == 1 else None)
                if source is None:
                    self.copied.add(index)
                for chunk in _chunks(source):
                    self.leaving[chunk].add(index)
        return self._assembled(steps, reads, writes, waits, needs, ready)

    def _assembled(
        self,
        steps: Sequence[_Timed],
        reads: Sequence[tuple[Range, ...]],
        writes: Sequence[Range | None],
        waits: Sequence[tuple[int, ...]],
        needs: Sequence[tuple[int, ...]],
        ready: dict[int, int],
    ) -> tuple[Action, ...]:
        slots: dict[Connection, list[int]] = defaultdict(list)
        posts: dict[int, list[int]] = defaultdict(list)
        ends: list[list[MessageEnd | None]] = []
        for index, (_, step, receives, sends) in enumerate(steps):
            pair: list[MessageEnd | None] = []
            for end, direct, outgoing in ((receives, index in ready, False), (sends, index not in self.copied, True)):
                if end is None:
                    pair.append(None)
                    continue
                connection, number = end
                slot = None
                if not direct:
                    through = slots[connection]
                    slot = (connection, len(through) % self.depth)
                    if not outgoing:
                        before = len(through) - self.depth
                        ready[index] = through[before] + 1 if before >= 0 else 0
                    through.append(index)
                peer = connection.dst if outgoing else connection.src
                pair.append(MessageEnd(peer, number * self.program.channels + connection.channel, step.count, slot))
            ends.append(pair)
            if receives is not None:
                posts[ready[index]].append(index)
        return tuple(
            Action(
                step=step,
                posts=tuple(posts[index]),
                waits=tuple(send for send in waits[index] if send not in self.copied),
                needs=needs[index],
                reads=reads[index],
                writes=writes[index],
                receives=ends[index][0],
                sends=ends[index][1],
            )
            for index, (_, step, _, _) in enumerate(steps)
        )


def _chunks(place: Range | None) -> list[tuple[str, int]]:
    return [] if place is None else [(place[0], place[1] + k) for k in range(place[2])]
