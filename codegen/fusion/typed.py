"""A collective program with typed steps: what is a partial sum, what is finished, and where the computation runs.

Programs of `treadle.codegen.collective.program` say which chunks go where. Executing one with contributions in place of
numbers shows the finishing step of each chunk: the one after which all ranks have contributed. There, and once per
chunk, the computation runs that is fused into the collective; before it chunks have the type that is reduced, after it
the type that the computation gives (CoCoNet, sections 5.3 and 5.5). Where nothing is reduced, the step that first takes
a chunk from its owner's input is the finishing one. Partial sums never lie in tensors of the caller: they are staged.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from treadle.codegen.collective.cuda.tables import FLOWS, READ, RECEIVE, REDUCE, SEND, WRITE
from treadle.codegen.collective.program import Buffer, CollectiveProgram
from treadle.codegen.collective.protocols import PROTOCOLS
from treadle.planner.errors import InputError

COMPUTE, FINISHED, AGAIN = 32, 64, 128
"""The computation runs in this step; its input is finished already (CoCoNet, section 3.5); another step has read or
written what it reads of the caller's, which counts as traffic once."""

REDUCING = frozenset({"allreduce", "reducescatter", "reduce"})
Operand = tuple[Buffer, int]
Space = Literal["input", "output", "stage"]


@dataclass(eq=False, slots=True)
class TypedStep:
    """One step of a threadblock on `count` chunks side by side.

    `source` is read where nothing is received, `addend` is added to it, `target` is written: (space, number of the
    chunk or the stage). `chunk` is the first one's number in the whole tensor. `after` are earlier steps of other
    threadblocks of the rank.
    """

    flow: int
    count: int
    read: Operand | None
    added: Operand | None
    written: Operand | None
    after: list[TypedStep] = field(default_factory=list)
    chunk: int = -1
    source: tuple[Space, int] | None = None
    addend: tuple[Space, int] | None = None
    target: tuple[Space, int] | None = None


@dataclass(eq=False, slots=True)
class TypedBlock:
    """A threadblock: its peers, if any, the channel of its connections, and its steps in order."""

    send: int | None
    recv: int | None
    channel: int
    steps: list[TypedStep]


@dataclass(frozen=True)
class ChunkState:
    """One chunk at one place: its number, the ranks that have contributed, whether the computation has run."""

    number: int
    ranks: frozenset[int]
    finished: bool


@dataclass(frozen=True)
class TypedProgram:
    """The threadblocks of every rank. `owners` maps each chunk of the tensor to the rank that computes on it."""

    lanes: tuple[tuple[TypedBlock, ...], ...]
    owners: dict[int, int]
    chunks: int
    stages: int
    slots: int


def typed_program(program: CollectiveProgram, *, computes: bool) -> TypedProgram:
    """The typed steps of `program`, with a computation at the finishing steps when it `computes`.

    Raises InputError when a computation would run on a chunk at several ranks, as in recursive doubling, or never; and
    for messages that mix partial sums with finished chunks.
    """
    slots = PROTOCOLS[program.protocol].slots
    for merged in (True, False):
        lanes = _lanes(program)
        if merged:
            for rank in lanes:
                _merge_copies(rank)
        if computes and program.collective not in REDUCING:
            for rank in lanes:
                _take_once(rank, program)
        execution = _Execution(program, lanes, computes)
        if execution.run(slots):
            break
    else:
        raise InputError(f"found a program that waits for itself with {slots} slots", where=program.name)
    owners = execution.owners()
    stages = _place(lanes, execution)
    chunks = program.part_chunks * (
        len(program.ranks) if program.collective in ("allgather", "reducescatter", "alltoall") else 1
    )
    return TypedProgram(tuple(tuple(rank) for rank in lanes), owners, chunks, stages, slots)


def _lanes(program: CollectiveProgram) -> list[list[TypedBlock]]:
    found = []
    for ranked in program.ranks:
        if ranked.copies:
            raise InputError("found copies before the first step, expected steps alone", where=program.name)
        made = [[_move(FLOWS[step.type], step.count, step.src, step.dst) for step in block.steps]
                for block in ranked.threadblocks]  # fmt: skip
        for moves, block in zip(made, ranked.threadblocks, strict=True):
            for move, step in zip(moves, block.steps, strict=True):
                if step.depends is not None:
                    move.after.append(made[step.depends[0]][step.depends[1]])
        found.append([TypedBlock(block.send, block.recv, block.channel, moves)
                      for moves, block in zip(made, ranked.threadblocks, strict=True)])  # fmt: skip
    return found


def _move(flow: int, count: int, src: Operand | None, dst: Operand | None) -> TypedStep:
    added = (src if flow & RECEIVE else dst) if flow & REDUCE else None
    read = src if flow & READ and not flow & RECEIVE else None
    return TypedStep(flow & ~READ | (READ if read else 0), count, read, added, dst if flow & WRITE else None)


def _merge_copies(lanes: list[TypedBlock]) -> None:
    """A copy from input to output and the first send of the same chunks become one step: they are read once."""
    for lane in [lane for lane in lanes if lane.send is None and lane.recv is None]:
        for copy in list(lane.steps):
            for other in lanes:
                for send in other.steps:
                    same = send.flow == SEND | READ and (send.read, send.count) == (copy.read, copy.count)
                    if copy in lane.steps and same and not send.after and not copy.after and copy.read[0] == "i":  # type: ignore[index]
                        send.flow, send.written = SEND | READ | WRITE, copy.written
                        lane.steps.remove(copy)
                        for move in _all(lanes):
                            move.after = [send if before is copy else before for before in move.after]
        if not lane.steps:
            lanes.remove(lane)


def _take_once(lanes: list[TypedBlock], program: CollectiveProgram) -> None:
    """Each input chunk is taken by one step: its copy to the output, if any, which the others then read. Raises
    InputError where several take it and none of them keeps it."""
    taking = [move for move in _all(lanes) if move.read is not None and move.read[0] == "i"]
    keepers = {
        index: (move, move.written[1] + index - _first(move))
        for move in taking
        if move.written is not None and move.written[0] == "o"
        for index in _indices(move)
    }
    taken: set[int] = set()
    for move in taking:
        kept = [keepers.get(index) for index in _indices(move)]
        if all(keeper is not None and keeper[0] is move for keeper in kept):
            continue
        places = [keeper[1] for keeper in kept if keeper is not None]
        if len(places) == move.count and places == list(range(places[0], places[0] + move.count)):
            move.read = ("o", places[0])
            move.after += dict.fromkeys(keeper[0] for keeper in kept if keeper is not None)
        elif places or not taken.isdisjoint(_indices(move)):
            raise InputError(
                f"found input chunk {_first(move)} sent several times, expected once or from a copy in the output",
                where=program.name,
            )
        else:
            taken.update(_indices(move))


def _first(move: TypedStep) -> int:
    return move.read[1] if move.read is not None else -1


def _indices(move: TypedStep) -> range:
    return range(_first(move), _first(move) + move.count)


def _all(lanes: Sequence[TypedBlock]) -> Iterator[TypedStep]:
    for lane in lanes:
        yield from lane.steps


class _Execution:
    """Runs the threadblocks on bounded connections with contributions in place of numbers; records what each step
    does."""

    def __init__(self, program: CollectiveProgram, lanes: list[list[TypedBlock]], computes: bool) -> None:
        self.program, self.lanes, self.computes = program, lanes, computes
        self.reduces = program.collective in REDUCING
        self.values: dict[tuple[int, Operand], ChunkState] = {}
        self.flight: dict[tuple[int, int, int], deque[list[ChunkState]]] = defaultdict(deque)
        self.finishes: dict[int, list[int]] = defaultdict(list)
        self.done: set[TypedStep] = set()
        self.results: dict[TypedStep, tuple[bool, bool]] = {}
        """Whether what a step reads, and what it writes, is finished."""

    def run(self, slots: int) -> bool:
        """Whether all steps could run."""
        positions = {(rank, number): 0 for rank, lanes in enumerate(self.lanes) for number in range(len(lanes))}
        going = True
        while going:
            going = False
            for (rank, number), position in positions.items():
                lane = self.lanes[rank][number]
                while position < len(lane.steps) and self.ready(rank, lane, lane.steps[position], slots):
                    self.perform(rank, lane, lane.steps[position])
                    position += 1
                    going = True
                positions[rank, number] = position
        return all(position == len(self.lanes[rank][number].steps) for (rank, number), position in positions.items())

    def ready(self, rank: int, lane: TypedBlock, move: TypedStep, slots: int) -> bool:
        if any(before not in self.done for before in move.after):
            return False
        if move.flow & RECEIVE and not self.flight[lane.recv, rank, lane.channel]:  # type: ignore[index]
            return False
        return not (move.flow & SEND and len(self.flight[rank, lane.send, lane.channel]) >= slots)  # type: ignore[index]

    def perform(self, rank: int, lane: TypedBlock, move: TypedStep) -> None:
        self.done.add(move)
        if not move.flow:
            return
        terms = [self.flight[lane.recv, rank, lane.channel].popleft()] if move.flow & RECEIVE else []  # type: ignore[index]
        terms += [self.read(rank, operand, move.count) for operand in (move.read, move.added) if operand is not None]
        chunks = [self.sum(parts) for parts in zip(*terms, strict=True)]
        complete = {self.complete(chunk) for chunk in chunks}
        ready = {part.finished for parts in terms for part in parts}
        if len(complete) > 1 or len(ready) > 1:
            raise InputError(
                "found a message of partial sums and finished chunks, expected one kind", where=self.program.name
            )
        before = ready.pop()
        finishing = complete.pop() and not before
        if finishing:
            for chunk in chunks:
                self.finishes[chunk.number].append(rank)
        chunks = [ChunkState(chunk.number, chunk.ranks, before or finishing) for chunk in chunks]
        numbers = [chunk.number for chunk in chunks]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise InputError(f"found chunks {numbers} in one message, expected neighbours", where=self.program.name)
        move.chunk = numbers[0]
        self.results[move] = (before, before or finishing)
        if finishing and self.computes:
            move.flow |= COMPUTE
        if before:
            move.flow |= FINISHED
        if move.written is not None:
            for index, chunk in enumerate(chunks, move.written[1]):
                self.values[rank, (move.written[0], index)] = chunk
        if move.flow & SEND:
            self.flight[rank, lane.send, lane.channel].append(chunks)  # type: ignore[index]

    def read(self, rank: int, operand: Operand, count: int) -> list[ChunkState]:
        return [self.value(rank, operand[0], index) for index in range(operand[1], operand[1] + count)]

    def value(self, rank: int, buffer: Buffer, index: int) -> ChunkState:
        if (rank, (buffer, index)) in self.values:
            return self.values[rank, (buffer, index)]
        if buffer != "i":
            raise InputError(
                f"found a read of {buffer}{index} at rank {rank}, which nothing wrote", where=self.program.name
            )
        number = rank * self.program.part_chunks + index if self.program.collective == "allgather" else index
        return ChunkState(number, frozenset({rank}), False)

    def sum(self, parts: Sequence[ChunkState]) -> ChunkState:
        ranks = frozenset[int]().union(*(part.ranks for part in parts))
        if len(ranks) < sum(len(part.ranks) for part in parts):
            raise InputError("found a contribution that is added twice", where=self.program.name)
        if len({part.number for part in parts}) > 1:
            raise InputError("found different chunks added up", where=self.program.name)
        return ChunkState(parts[0].number, ranks, parts[0].finished)

    def complete(self, chunk: ChunkState) -> bool:
        return not self.reduces or len(chunk.ranks) == len(self.program.ranks)

    def owners(self) -> dict[int, int]:
        """Where each chunk is finished. Raises InputError unless a computation runs once on each."""
        for chunk, ranks in sorted(self.finishes.items()):
            if self.computes and self.program.collective not in ("alltoall", "send") and len(ranks) > 1:
                raise InputError(
                    f"found chunk {chunk} finished at ranks {', '.join(map(str, sorted(ranks)))}, expected one rank: "
                    "no computation can be fused into this algorithm",
                    where=self.program.name,
                )
        return {chunk: ranks[0] for chunk, ranks in sorted(self.finishes.items())}


def _place(lanes: list[list[TypedBlock]], execution: _Execution) -> int:
    """Decide for every operand whether it lies in a tensor or on a stage; returns the most stages that a rank needs."""
    most = 0
    for rank in lanes:
        staged: set[Operand] = set()
        for move in _all(rank):
            if move.written is not None and (move.written[0] == "s" or not execution.results[move][1]):
                staged.update((move.written[0], move.written[1] + i) for i in range(move.count))
        numbers = {operand: number for number, operand in enumerate(sorted(staged))}
        most = max(most, len(numbers))
        for move in _all(rank):
            if move.flow:
                before, after = execution.results[move]
                move.source = _space(move, move.read, before, numbers, execution)
                move.addend = _space(move, move.added, before, numbers, execution)
                move.target = _space(move, move.written, after, numbers, execution)
    return most


def _space(
    move: TypedStep, operand: Operand | None, finished: bool, stages: dict[Operand, int], execution: _Execution
) -> tuple[Space, int] | None:
    if operand is None:
        return None
    if operand[0] == "i":
        return "input", move.chunk
    if operand[0] == "o" and finished:
        return "output", operand[1] if execution.program.collective == "alltoall" else move.chunk
    return "stage", stages[operand]
