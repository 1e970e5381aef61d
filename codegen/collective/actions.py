"""The steps of a program as actions of their ranks, each with the earlier ones of its rank that it waits for.

All ranks take one sequence of the whole program that `treadle.codegen.collective.order` found to end. An action waits
only for those before it that touch the same chunks: for the value that it reads or writes over, and for the leaving of
a message whose source it writes over. So what is ready runs, in any order, with the results of the sequence.

The CPU runtime executes these actions; `treadle.codegen.collective.simulate_cpu` predicts their time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from treadle.codegen.collective import order
from treadle.codegen.collective.program import BlockStep, Buffer, CollectiveProgram, Connection, Place, home
from treadle.planner.errors import CheckFailed

FIFO_DEPTH = 2
"""Messages of a connection with which a program must end. The CPU runtime itself has no such limit."""

Chunk = tuple[Buffer, int]
Range = tuple[Buffer, int, int]
"""(buffer, first chunk, number of chunks)."""


@dataclass(frozen=True, slots=True)
class TaggedMessage:
    """`count` chunks from rank to rank; no other message of the pair has its `tag` in this direction."""

    src: int
    dst: int
    tag: int
    count: int


@dataclass(frozen=True, slots=True)
class Action:
    """One step: combine the terms (`reads`, and what arrives) into `writes`, and send the result. It starts when the
    values of the actions in `after` are there and the messages of those in `after_leaving` have left. Those in `behind`
    send from where it receives to: it writes over what of their messages has left. All count the actions of its rank.
    """

    place: Place
    step: BlockStep
    after: tuple[int, ...]
    after_leaving: tuple[int, ...]
    behind: tuple[int, ...]
    reads: tuple[Range, ...]
    writes: Range | None
    receives: TaggedMessage | None
    sends: TaggedMessage | None


def script_of(program: CollectiveProgram, rank: int, *, inplace: bool) -> tuple[Action, ...]:
    """The actions of `rank`. Raises CheckFailed when the program never ends."""
    places = (place for place in sequence_of(program) if place.rank == rank)
    return tuple(actions(program, places, inplace=inplace))


def sequence_of(program: CollectiveProgram) -> tuple[Place, ...]:
    """One order in which all steps can run. Raises CheckFailed when the program never ends."""
    run = order.run(program, FIFO_DEPTH)
    if run.stuck:
        raise CheckFailed("the program never ends; `treadle check` says why")
    return run.sequence


def actions(program: CollectiveProgram, places: Iterable[Place], *, inplace: bool) -> Iterator[Action]:
    """The steps at `places`, which are all of one rank or of several in an order in which they can run."""
    ranks: dict[int, _Hazards] = defaultdict(_Hazards)
    numbers: tuple[dict[Connection, int], dict[Connection, int]] = (defaultdict(int), defaultdict(int))
    for place in places:
        block = program.ranks[place.rank].threadblocks[place.threadblock]
        step = block.steps[place.step]
        if step.type == "nop":
            continue
        reads = tuple(_located(program, place.rank, operand, step.count, inplace) for operand in step.reads)
        writes = None if step.writes is None else _located(program, place.rank, step.writes, step.count, inplace)
        ends = order.incoming(place, block, step), order.outgoing(place, block, step)
        receives, sends = (_message(program, end, known, step.count) for end, known in zip(ends, numbers, strict=True))
        source = None
        if sends is not None:
            source = writes or (reads[0] if receives is None and len(reads) == 1 else None)
        hazards = ranks[place.rank]
        after, leaving = hazards.next(reads, writes, source)
        behind = tuple(other for other in leaving if receives is not None and hazards.sources[other] == writes)
        leaving = tuple(other for other in leaving if other not in behind)
        yield Action(place, step, after, leaving, behind, reads, writes, receives, sends)


def _located(program: CollectiveProgram, rank: int, operand: Chunk, count: int, inplace: bool) -> Range:
    return (*(home(program.collective, program.part_chunks, rank, *operand) if inplace else operand), count)


def _message(
    program: CollectiveProgram, connection: Connection | None, numbers: dict[Connection, int], count: int
) -> TaggedMessage | None:
    """The next message of a connection, whose `numbers` count those before it."""
    if connection is None:
        return None
    number = numbers[connection]
    numbers[connection] += 1
    return TaggedMessage(connection.src, connection.dst, number * program.channels + connection.channel, count)


@dataclass(slots=True)
class _Hazards:
    """Who touched each chunk of a rank last: the action that wrote it, those that read it since, those that send it
    from it."""

    sources: list[Range | None] = field(default_factory=list)
    """By action, where it sends from."""
    writer: dict[Chunk, int] = field(default_factory=dict)
    readers: dict[Chunk, set[int]] = field(default_factory=lambda: defaultdict(set))
    senders: dict[Chunk, set[int]] = field(default_factory=lambda: defaultdict(set))

    def next(
        self, reads: tuple[Range, ...], writes: Range | None, source: Range | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The actions whose value, and whose leaving, the next action waits for; `source` is where it sends from."""
        index = len(self.sources)
        self.sources.append(source)
        read = {chunk for place in reads for chunk in _chunks(place)}
        written = set(_chunks(writes))
        after = {self.writer[chunk] for chunk in read | written if chunk in self.writer}
        leaving: set[int] = set()
        for chunk in written:
            after |= self.readers.pop(chunk, set())
            leaving |= self.senders.pop(chunk, set())
            self.writer[chunk] = index
        for chunk in read - written:
            self.readers[chunk].add(index)
        for chunk in _chunks(source):
            self.senders[chunk].add(index)
        return tuple(sorted(after)), tuple(sorted(leaving))


def _chunks(place: Range | None) -> list[Chunk]:
    return [] if place is None else [(place[0], place[1] + k) for k in range(place[2])]
