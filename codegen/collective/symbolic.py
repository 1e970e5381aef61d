"""Symbolic execution of a collective program: what every chunk ends as, and which accesses nothing orders.

A chunk is the multiset of contributions summed into it. Of any two accesses of one chunk of which one writes it, one
must happen before the other; nearly always a dependence says so directly, the rest is left to `happens_before`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from treadle.codegen.collective import order
from treadle.codegen.collective.happens_before import unordered
from treadle.codegen.collective.program import (
    BUFFER_NAMES,
    RECEIVING,
    SENDING,
    BlockStep,
    Buffer,
    CollectiveProgram,
    Connection,
    Place,
    home,
)
from treadle.planner.documents.hardware import MAX_RANKS

Label = tuple[int, int]
Value = tuple[Label, ...]
"""Sorted contributions (rank, input chunk) that were added up, each as often as it was added."""
Address = tuple[int, Buffer, int]
ExpectedOutputs = Mapping[tuple[int, int], Value]
"""(rank, output chunk) -> what it must end as."""

RESIDUAL = -1
"""The rank in the labels of what `ra` adds: the residuals of the call, the same on every rank."""


@dataclass(slots=True)
class _History:
    """Last write of a chunk and, by threadblock, the last read since."""

    write: Place | None = None
    reads: dict[int, Place] = field(default_factory=dict)


class SymbolicExecution:
    """One symbolic execution. `findings` are data races, reads of nothing and writes to the caller's input, in the
    order of the sequence."""

    def __init__(self, program: CollectiveProgram, inplace: bool) -> None:
        self.program, self.inplace = program, inplace
        self.values: dict[Address, Value] = {}
        self.history: dict[Address, _History] = defaultdict(_History)
        self.part = program.part_chunks
        self.flight: dict[Connection, deque[list[Value]]] = defaultdict(deque)
        self.waited: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        """By threadblock: how far it has seen each other one of its rank get."""
        self.noted: list[tuple[int, str]] = []
        self.suspects: list[tuple[int, Place, Place, str]] = []
        self.number = 0
        for rank, ranked in enumerate(program.ranks):
            for index in range(max(ranked.input_chunks, _input_chunks(program))):
                self.values[self.address(rank, "i", index)] = ((rank, index),)
            for source, target in ranked.copies:
                self.values[self.address(rank, "o", target)] = self.values[self.address(rank, "i", source)]

    def address(self, rank: int, buffer: Buffer, index: int) -> Address:
        if self.inplace:
            buffer, index = home(self.program.collective, self.part, rank, buffer, index)
        return rank, buffer, index

    def follow(self, sequence: Iterable[Place]) -> list[str]:
        """Execute `sequence`; returns the findings."""
        sequence = tuple(sequence)
        program = self.program
        blocks = {(rank, index): (block.steps, *order.fifos_of(rank, block)) for rank, index, block in program.blocks()}
        for self.number, place in enumerate(sequence):
            steps, received, sent = blocks[place.rank, place.threadblock]
            self.execute(place, steps[place.step], received, sent)
        races = unordered(self.program, sequence, [(before, now) for _, before, now, _ in self.suspects])
        found = [*self.noted, *((self.suspects[index][0], self.suspects[index][3]) for index in races)]
        return list(dict.fromkeys(text for _, text in sorted(found, key=lambda entry: entry[0])))

    def execute(self, place: Place, step: BlockStep, received: Connection | None, sent: Connection | None) -> None:
        if step.depends is not None:
            seen = self.waited[place.rank, place.threadblock]
            seen[step.depends[0]] = max(step.depends[1], seen.get(step.depends[0], -1))
        if step.type == "nop":
            return
        parts = [self.flight[received].popleft()] if received is not None and step.type in RECEIVING else []
        parts += [self.read(place, operand, step.count) for operand in step.reads]
        if step.type == "ra" and step.src is not None:
            parts.append([((RESIDUAL, index),) for index in range(step.src[1], step.src[1] + step.count)])
        values = parts[0] if len(parts) == 1 else [self.sum(place, terms) for terms in zip(*parts, strict=True)]
        if step.writes is not None:
            self.write(place, step.writes, values)
        if sent is not None and step.type in SENDING:
            self.flight[sent].append(values)

    def read(self, place: Place, operand: tuple[Buffer, int], count: int) -> list[Value]:
        values = []
        for index in range(operand[1], operand[1] + count):
            address = self.address(place.rank, operand[0], index)
            history = self.history[address]
            self.race(place, history.write, "reads", "writes", address)
            history.reads[place.threadblock] = place
            if address not in self.values:
                self.complain(place, f"reads {BUFFER_NAMES[operand[0]]} chunk {index}, which nothing wrote")
            values.append(self.values.get(address, ()))
        return values

    def write(self, place: Place, operand: tuple[Buffer, int], values: list[Value]) -> None:
        for index, value in enumerate(values, operand[1]):
            address = self.address(place.rank, operand[0], index)
            if address[1] == "i" and not self.inplace and self.program.collective not in UNSPECIFIED:
                self.complain(place, f"overwrites input chunk {index}, which an out-of-place call must keep")
            history = self.history[address]
            self.race(place, history.write, "writes", "writes", address)
            for reader in history.reads.values():
                self.race(place, reader, "writes", "reads", address)
            history.write, history.reads = place, {}
            self.values[address] = value

    def race(self, now: Place, before: Place | None, verb: str, other: str, address: Address) -> None:
        """Everything recorded ran earlier in this sequence; without happens-before it could have run later."""
        if before is None or now.threadblock == before.threadblock:
            return
        if self.waited[now.rank, now.threadblock].get(before.threadblock, -1) >= before.step:
            return
        text = (
            f"{self.program.spot(now)}: data race: {verb} {BUFFER_NAMES[address[1]]} chunk {address[2]} while "
            f"{self.program.spot(before)} {other} it, and nothing orders the two"
        )
        self.suspects.append((self.number, before, now, text))

    def sum(self, place: Place, terms: tuple[Value, ...]) -> Value:
        """All contributions; beyond one per rank no sum is right, and sums of sums would grow without end."""
        labels: Value = ()
        for term in terms:
            labels += term
        value = tuple(sorted(labels))
        if len(value) > MAX_RANKS + 1:
            self.complain(place, f"adds up {len(value)} contributions, expected at most {MAX_RANKS}")
        return value[: MAX_RANKS + 1]

    def complain(self, place: Place, text: str) -> None:
        self.noted.append((self.number, f"{self.program.spot(place)}: {text}"))


UNSPECIFIED = frozenset({"custom", "alltoallv", "sendrecv", "send", "recv"})
"""Collectives whose file alone does not say what the result is."""


def _input_chunks(program: CollectiveProgram) -> int:
    """Chunks the caller hands in, also where an in-place program declares no input buffer."""
    if program.collective in UNSPECIFIED or program.collective == "scatter" or not program.inplace:
        return 0
    return program.part_chunks if program.collective in ("allgather", "gather") else program.chunks_per_loop


class CallShape:
    """How a call's data is divided: `ranks`, chunks of one rank's `part`, the `root`; a `residual` joins each sum."""

    def __init__(self, ranks: int, part: int, root: int, residual: bool = False) -> None:
        self.ranks, self.part, self.root, self.residual = range(ranks), part, root, residual
        self.totals: dict[int, Value] = {}

    def total(self, chunk: int) -> Value:
        if chunk not in self.totals:
            extra = ((RESIDUAL, chunk),) if self.residual else ()
            self.totals[chunk] = (*extra, *((rank, chunk) for rank in self.ranks))
        return self.totals[chunk]


OUTPUTS: dict[str, Callable[[CallShape, int, int], Value | None]] = {
    "allgather": lambda of, rank, chunk: ((chunk // of.part, chunk % of.part),),
    "reducescatter": lambda of, rank, chunk: of.total(rank * of.part + chunk),
    "allreduce": lambda of, rank, chunk: of.total(chunk),
    "alltoall": lambda of, rank, chunk: ((chunk // of.part, rank * of.part + chunk % of.part),),
    "broadcast": lambda of, rank, chunk: ((of.root, chunk),),
    "reduce": lambda of, rank, chunk: of.total(chunk) if rank == of.root else None,
    "gather": lambda of, rank, chunk: ((chunk // of.part, chunk % of.part),) if rank == of.root else None,
    "scatter": lambda of, rank, chunk: ((of.root, rank * of.part + chunk),),
}
"""By collective: the value that a rank's output chunk must end as, None where it is unspecified."""
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})


def _shape(program: CollectiveProgram, root: int) -> CallShape:
    residual = any(step.type == "ra" for _, _, step in program.steps())
    return CallShape(len(program.ranks), program.part_chunks, root, residual)


def wrong_results(
    program: CollectiveProgram, replay: SymbolicExecution, named: int, expected: ExpectedOutputs | None = None
) -> Iterator[str]:
    """Compare the final output with what the collective specifies. A file may omit its root: the best one is taken. The
    first `named` findings are spelled out, the rest are empty, to be counted."""
    if expected is None:
        wrong = _wrong(program, replay)
    else:
        wrong = (
            (rank, chunk, wanted)
            for (rank, chunk), wanted in sorted(expected.items())
            if replay.values.get(replay.address(rank, "o", chunk)) != wanted
        )
    for number, (rank, chunk, wanted) in enumerate(wrong):
        yield _result(program, replay, rank, chunk, wanted) if number < named else ""


def _output_chunks(program: CollectiveProgram) -> int:
    """Output chunks of a rank that the collective may specify."""
    if program.collective in ("reducescatter", "scatter"):
        return program.part_chunks
    return program.part_chunks * len(program.ranks) if program.collective == "gather" else program.chunks_per_loop


def _wrong(program: CollectiveProgram, replay: SymbolicExecution) -> Iterator[tuple[int, int, Value]]:
    """(rank, output chunk, specified value) of every chunk that ends as something else."""
    if program.collective in UNSPECIFIED:
        return
    rooted = program.collective in ROOTED
    root = _best_root(program, replay) if rooted and program.root is None else program.root or 0
    expected, shape = OUTPUTS[program.collective], _shape(program, root)
    for rank in range(len(program.ranks)):
        for chunk in range(_output_chunks(program)):
            wanted = expected(shape, rank, chunk)
            if wanted is not None and replay.values.get(replay.address(rank, "o", chunk)) != wanted:
                yield rank, chunk, wanted


def _best_root(program: CollectiveProgram, replay: SymbolicExecution) -> int:
    """The root for which most output chunks are right, the lowest of equals; one pass over all chunks."""
    expected, shape = OUTPUTS[program.collective], _shape(program, 0)
    right = [0] * len(program.ranks)
    for rank in range(len(program.ranks)):
        for chunk in range(_output_chunks(program)):
            found = replay.values.get(replay.address(rank, "o", chunk))
            if program.collective in ("reduce", "gather"):
                right[rank] += found == expected(shape, 0, chunk)
            elif found is not None and len(found) == 1:
                at = chunk if program.collective == "broadcast" else rank * program.part_chunks + chunk
                right[found[0][0]] += found[0][1] == at
    return right.index(max(right))


def _result(program: CollectiveProgram, replay: SymbolicExecution, rank: int, chunk: int, wanted: Value) -> str:
    address = replay.address(rank, "o", chunk)
    found, history = replay.values.get(address), replay.history.get(address)
    spot = program.spot(history.write) if history and history.write else f"gpu {rank}"
    return f"{spot}: output chunk {chunk} ends as {_describe(found)}, expected {_describe(wanted)}"


def _describe(value: Value | None) -> str:
    if not value:
        return "nothing"
    names = [_name(label) for label in value[:3]]
    if len(value) == 1:
        return names[0]
    residuals = [label for label in value if label[0] == RESIDUAL]
    if residuals and residuals != list(value):
        more = f" and {len(residuals) - 3} more" if len(residuals) > 3 else ""
        return f"{_describe(value[len(residuals) :])} and {', '.join(map(_name, residuals[:3]))}{more}"
    chunks = {index for _, index in value}
    if len(chunks) == 1:
        return f"the sum of input chunk {chunks.pop()} over gpus {_counted([rank for rank, _ in value])}"
    return "the sum of " + ", ".join(names) + (f" and {len(value) - 3} more" if len(value) > 3 else "")


def _name(label: Label) -> str:
    return f"input chunk {label[1]} of gpu {label[0]}" if label[0] != RESIDUAL else f"residual chunk {label[1]}"


def _counted(ranks: list[int]) -> str:
    """`0-3`, `0, 2, 2`: runs of ranks that follow each other, repeated ones spelled out."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
