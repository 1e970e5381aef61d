"""Symbolic execution of a collective program: what every chunk ends as, and which accesses nothing orders.

A chunk is the multiset of contributions summed into it. Happens-before is tracked by vector clocks over all
threadblocks: program order, dependences, and messages from their send to their receive. Room in a FIFO orders nothing:
how deep it is differs between runtimes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from codegen import order
from codegen.program import BUFFER_NAMES, Buffer, Connection, Place, Program, Step, Threadblock, home
from planner.hardware import MAX_RANKS

Label = tuple[int, int]
Value = tuple[Label, ...]
"""Sorted contributions (rank, input chunk) that were added up, each as often as it was added."""
Address = tuple[int, Buffer, int]


@dataclass(slots=True)
class _Access:
    """Who touched a chunk: the place, and its threadblock's number among all of them."""

    place: Place
    block: int


@dataclass(slots=True)
class _History:
    """Last write of a chunk and the reads since."""

    write: _Access | None = None
    reads: list[_Access] = field(default_factory=list)


class Replay:
    """One symbolic execution. `findings` are data races, reads of nothing and writes to the caller's input."""

    def __init__(self, program: Program, inplace: bool) -> None:
        self.program, self.inplace = program, inplace
        self.findings: list[str] = []
        self.values: dict[Address, Value] = {}
        self.history: dict[Address, _History] = defaultdict(_History)
        numbers = [
            (rank, block) for rank, ranked in enumerate(program.ranks) for block in range(len(ranked.threadblocks))
        ]
        self.number = {key: number for number, key in enumerate(numbers)}
        self.clock = np.zeros((len(numbers), len(numbers)), dtype=np.int32)
        self.passed: dict[Place, np.ndarray[tuple[int], np.dtype[np.int32]]] = {}
        self.flight: dict[Connection, list[tuple[list[Value], np.ndarray[tuple[int], np.dtype[np.int32]]]]] = (
            defaultdict(list)
        )
        for rank, ranked in enumerate(program.ranks):
            for index in range(max(ranked.input_chunks, _input_chunks(program))):
                self.values[self.address(rank, "i", index)] = ((rank, index),)
            for source, target in ranked.copies:
                self.values[self.address(rank, "o", target)] = self.values[self.address(rank, "i", source)]

    def address(self, rank: int, buffer: Buffer, index: int) -> Address:
        if self.inplace:
            buffer, index = home(self.program.collective, self.program.part_chunks, rank, buffer, index)
        return rank, buffer, index

    def follow(self, sequence: Iterable[Place]) -> None:
        for place in sequence:
            block = self.program.ranks[place.rank].threadblocks[place.threadblock]
            self.execute(place, block, block.steps[place.step])

    def execute(self, place: Place, block: Threadblock, step: Step) -> None:
        number = self.number[place.rank, place.threadblock]
        clock = self.clock[number]
        if step.depends is not None:
            np.maximum(clock, self.passed[Place(place.rank, *step.depends)], out=clock)
        arrived: list[Value] = []
        if (received := order.incoming(place, block, step)) is not None:
            arrived, sender_clock = self.flight[received].pop(0)
            np.maximum(clock, sender_clock, out=clock)
        clock[number] = place.step + 1
        access = _Access(place, number)
        if step.type == "nop":
            values: list[Value] = []
        else:
            operands = [self.read(access, operand, step.count) for operand in step.reads]
            parts = [arrived, *operands] if arrived else operands
            values = parts[0] if len(parts) == 1 else [self.sum(access, terms) for terms in zip(*parts, strict=True)]
        if step.writes is not None:
            self.write(access, step.writes, values)
        if (sent := order.outgoing(place, block, step)) is not None:
            self.flight[sent].append((values, clock.copy()))
        if step.awaited:
            self.passed[place] = clock.copy()

    def read(self, access: _Access, operand: tuple[Buffer, int], count: int) -> list[Value]:
        values = []
        for index in range(operand[1], operand[1] + count):
            address = self.address(access.place.rank, operand[0], index)
            history = self.history[address]
            self.race(access, history.write, "reads", "writes", address)
            history.reads.append(access)
            if address not in self.values:
                self.complain(access, f"reads {BUFFER_NAMES[operand[0]]} chunk {index}, which nothing wrote")
            values.append(self.values.get(address, ()))
        return values

    def write(self, access: _Access, operand: tuple[Buffer, int], values: list[Value]) -> None:
        for index, value in enumerate(values, operand[1]):
            address = self.address(access.place.rank, operand[0], index)
            if address[1] == "i" and not self.inplace and self.program.collective != "custom":
                self.complain(access, f"overwrites input chunk {index}, which an out-of-place call must keep")
            history = self.history[address]
            self.race(access, history.write, "writes", "writes", address)
            for reader in history.reads:
                self.race(access, reader, "writes", "reads", address)
            history.write, history.reads = access, []
            self.values[address] = value

    def race(self, now: _Access, before: _Access | None, verb: str, other: str, address: Address) -> None:
        """Everything recorded ran earlier in this sequence; without happens-before it could have run later."""
        if before is None or self.clock[now.block, before.block] > before.place.step:
            return
        if now.place.threadblock == before.place.threadblock:
            return
        self.complain(
            now,
            f"data race: {verb} {BUFFER_NAMES[address[1]]} chunk {address[2]} while "
            f"{self.program.spot(before.place)} {other} it, and nothing orders the two",
        )

    def sum(self, access: _Access, terms: tuple[Value, ...]) -> Value:
        """All contributions; beyond one per rank no sum is right, and sums of sums would grow without end."""
        value = tuple(sorted(label for term in terms for label in term))
        if len(value) > MAX_RANKS:
            self.complain(access, f"adds up {len(value)} contributions, expected at most {MAX_RANKS}")
        return value[:MAX_RANKS]

    def complain(self, access: _Access, text: str) -> None:
        self.findings.append(f"{self.program.spot(access.place)}: {text}")


def _input_chunks(program: Program) -> int:
    """Chunks the caller hands in per rank, also where an in-place program declares no input buffer."""
    if program.collective == "custom" or not program.inplace:
        return 0
    return program.part_chunks if program.collective == "allgather" else program.chunks_per_loop


Expected = Callable[[int, int], Value | None]
"""(rank, output chunk) -> the promised value, None where nothing is promised."""


def _expected(program: Program, root: int) -> Expected:
    ranks, part = range(len(program.ranks)), program.part_chunks
    everyone: dict[int, Value] = {}

    def total(chunk: int) -> Value:
        if chunk not in everyone:
            everyone[chunk] = tuple((rank, chunk) for rank in ranks)
        return everyone[chunk]

    table: dict[str, Expected] = {
        "allgather": lambda rank, chunk: ((chunk // part, chunk % part),),
        "reducescatter": lambda rank, chunk: total(rank * part + chunk),
        "allreduce": lambda rank, chunk: total(chunk),
        "alltoall": lambda rank, chunk: ((chunk // part, rank * part + chunk % part),),
        "broadcast": lambda rank, chunk: ((root, chunk),),
        "reduce": lambda rank, chunk: total(chunk) if rank == root else None,
    }
    return table[program.collective]


def wrong_results(program: Program, replay: Replay, named: int) -> Iterator[str]:
    """Compare the final output with the collective's promise. A file need not say its root: the best one is taken.

    The first `named` findings are spelled out, the rest are empty, to be counted.
    """
    if program.collective == "custom":
        return
    rooted = program.collective in ("broadcast", "reduce")
    root = _best_root(program, replay) if rooted and program.root is None else program.root or 0
    for number, (rank, chunk, wanted) in enumerate(_wrong(program, replay, _expected(program, root))):
        yield _result(program, replay, rank, chunk, wanted) if number < named else ""


def _best_root(program: Program, replay: Replay) -> int:
    """The root for which most output chunks are right, the lowest of equals; one pass over all chunks."""
    total = _expected(program, 0)
    right = [0] * len(program.ranks)
    for rank in range(len(program.ranks)):
        for chunk in range(program.chunks_per_loop):
            found = replay.values.get(replay.address(rank, "o", chunk))
            if program.collective == "reduce":
                right[rank] += found == total(0, chunk)
            elif found is not None and len(found) == 1 and found[0][1] == chunk:
                right[found[0][0]] += 1
    return right.index(max(right))


def _wrong(program: Program, replay: Replay, expected: Expected) -> Iterator[tuple[int, int, Value]]:
    """(rank, output chunk, promised value) of every chunk that ends as something else."""
    size = program.part_chunks if program.collective == "reducescatter" else program.chunks_per_loop
    for rank in range(len(program.ranks)):
        for chunk in range(size):
            wanted = expected(rank, chunk)
            if wanted is not None and replay.values.get(replay.address(rank, "o", chunk)) != wanted:
                yield rank, chunk, wanted


def _result(program: Program, replay: Replay, rank: int, chunk: int, wanted: Value) -> str:
    address = replay.address(rank, "o", chunk)
    found, history = replay.values.get(address), replay.history.get(address)
    spot = program.spot(history.write.place) if history and history.write else f"gpu {rank}"
    return f"{spot}: output chunk {chunk} ends as {_describe(found)}, expected {_describe(wanted)}"


def _describe(value: Value | None) -> str:
    if not value:
        return "nothing"
    names = [f"input chunk {index} of gpu {rank}" for rank, index in value[:3]]
    if len(value) == 1:
        return names[0]
    chunks = {index for _, index in value}
    if len(chunks) == 1:
        return f"the sum of input chunk {chunks.pop()} over gpus {_counted([rank for rank, _ in value])}"
    return "the sum of " + ", ".join(names) + (f" and {len(value) - 3} more" if len(value) > 3 else "")


def _counted(ranks: list[int]) -> str:
    """`0-3`, `0, 2, 2`: runs of ranks that follow each other, repeated ones spelled out."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
