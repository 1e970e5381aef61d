"""Where every rank keeps every chunk, and what travels as one message (TACCL, section 5.6.1).

Departures and arrivals are put in causal order and followed: a batch of chunks becomes as few messages as there are
runs of chunks that lie side by side at both of its ends.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from treadle.codegen.collective.program import Buffer, home
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, Transfer
from treadle.planner.passes.collective.collectives import DEMANDING, form_of, positions

Operand = tuple[Buffer, int]


class Layout:
    """Where each rank keeps each chunk: in its input the chunks that it holds before, by id, in its output those that
    it holds after, by id; in scratch, by first use, what only passes through."""

    def __init__(self, decisions: CollectiveDecisions, inplace: bool) -> None:
        """Raises InputError for a collective that has no calls in place."""
        self.collective, self.ranks, self.inplace = decisions.collective, decisions.ranks, inplace
        if inplace and self.collective in ("alltoall", *DEMANDING):
            raise InputError(f"{self.collective} cannot run in place")
        self.root = decisions.root or 0
        form = form_of(decisions)
        before, after = positions(form.before, self.ranks), positions(form.after, self.ranks)
        self.loop = max(1, *map(len, before), *map(len, after))
        parted = self.collective in ("allgather", "reducescatter", "gather", "scatter")
        self.part = decisions.chunkup if parted else self.loop
        self.inputs = [self._operands(rank, "i", chunks) for rank, chunks in enumerate(before)]
        self.outputs = [self._operands(rank, "o", chunks) for rank, chunks in enumerate(after)]
        self.scratch: list[dict[int, int]] = [{} for _ in range(self.ranks)]

    def sizes(self, rank: int) -> tuple[int, int]:
        """Input and output chunks; in place, the buffer that the other one contains is left out."""
        given, made = len(self.inputs[rank]), len(self.outputs[rank])
        if self.collective in ("broadcast", "reduce"):
            given = made = self.loop
        if not self.inplace or (self.collective in ("gather", "scatter") and rank != self.root):
            return given, made
        return (0, made) if self.collective in ("allgather", "gather") else (given, 0)

    def _operands(self, rank: int, buffer: Buffer, chunks: Sequence[int]) -> dict[int, Operand]:
        alone = self.collective in ("gather", "scatter") and rank != self.root
        if not self.inplace or alone:
            return {chunk: (buffer, index) for index, chunk in enumerate(chunks)}
        return {chunk: home(self.collective, self.part, rank, buffer, index) for index, chunk in enumerate(chunks)}

    def store(self, rank: int, chunk: int) -> Operand:
        """Where `rank` puts a chunk that arrives: its output, or scratch for what only passes through."""
        output = self.outputs[rank].get(chunk)
        return output or ("s", self.scratch[rank].setdefault(chunk, len(self.scratch[rank])))


@dataclass(frozen=True, slots=True)
class ChunkRange:
    """`size` chunks side by side in every operand: a local copy, or what one message moves. `addend` is what a reducing
    receive adds to what arrives."""

    source: Operand
    target: Operand
    addend: Operand | None = None
    size: int = 1

    def joined(self, other: ChunkRange) -> ChunkRange | None:
        """This run with the one chunk of `other` behind it, None where they are no neighbours."""
        addend = None if self.addend is None else _behind(self.addend, self.size)
        if (_behind(self.source, self.size), _behind(self.target, self.size), addend) != (
            other.source,
            other.target,
            other.addend,
        ):
            return None
        return replace(self, size=self.size + 1)

    def singles(self) -> list[ChunkRange]:
        """One run per chunk."""
        addends = [None if self.addend is None else _behind(self.addend, k) for k in range(self.size)]
        return [
            ChunkRange(_behind(self.source, k), _behind(self.target, k), addend) for k, addend in enumerate(addends)
        ]

    def part(self, instance: int, instances: int) -> ChunkRange:
        """Sub-chunks [off*n + i*size, off*n + (i+1)*size) of every operand for instance i of n."""

        def cut(operand: Operand) -> Operand:
            return operand[0], operand[1] * instances + instance * self.size

        addend = None if self.addend is None else cut(self.addend)
        return ChunkRange(cut(self.source), cut(self.target), addend, self.size)


def _behind(operand: Operand, size: int) -> Operand:
    return operand[0], operand[1] + size


def _joined(runs: Iterable[ChunkRange]) -> list[ChunkRange]:
    result: list[ChunkRange] = []
    for run in runs:
        longer = result[-1].joined(run) if result else None
        if longer is None:
            result.append(run)
        else:
            result[-1] = longer
    return result


@dataclass(slots=True)
class Batch:
    """Transfers of one link that leave together. `sources` and `runs` are filled in when it leaves and arrives."""

    moves: list[Transfer]
    sources: list[Operand] = field(default_factory=list)
    runs: list[ChunkRange] = field(default_factory=list)

    @property
    def src(self) -> int:
        return self.moves[0].src

    @property
    def dst(self) -> int:
        return self.moves[0].dst


class Event(NamedTuple):
    """A batch arrives (kind 0) or leaves (kind 1); at one time arrivals come first."""

    time: int
    kind: int
    number: int


ARRIVES, LEAVES = 0, 1


def place_chunks(
    decisions: CollectiveDecisions, layout: Layout, batches: Sequence[Batch], events: Iterable[Event]
) -> list[list[ChunkRange]]:
    """Give every batch its runs, and return each rank's local copies.

    A chunk that starts and ends at a rank is copied from input to output before anything else; it is sent from there
    where it may be a neighbour of the other chunks of its batch, and straight from the input when it goes alone.
    """
    held = [dict(inputs) for inputs in layout.inputs]
    arriving = {(move.dst, move.chunk) for move in decisions.transfers}
    copied = [
        {
            chunk: (source, target)
            for chunk, source in held[rank].items()
            if (target := layout.outputs[rank].get(chunk)) not in (None, source) and (rank, chunk) not in arriving
        }
        for rank in range(decisions.ranks)
    ]
    for event in events:
        batch = batches[event.number]
        if event.kind == LEAVES:
            _leave(batch, held[batch.src], copied[batch.src])
        else:
            _arrive(batch, held[batch.dst], layout)
    return [_joined(ChunkRange(source, target) for source, target in sorted(pairs.values())) for pairs in copied]


def _leave(batch: Batch, held: dict[int, Operand], copied: dict[int, tuple[Operand, Operand]]) -> None:
    """Where the chunks of a batch stand at its source; sorts the batch by that."""
    places = []
    for move in batch.moves:
        if move.chunk not in held:
            raise InputError(
                f"chunk {move.chunk} is sent from {move.src} to {move.dst} at {move.send_ns} ns, "
                f"when rank {move.src} does not hold it"
            )
        together = len(batch.moves) > 1 and move.chunk in copied
        places.append((copied[move.chunk][1] if together else held[move.chunk], move))
    places.sort(key=lambda pair: pair[0])
    batch.sources, batch.moves = [place for place, _ in places], [move for _, move in places]


def _arrive(batch: Batch, held: dict[int, Operand], layout: Layout) -> None:
    runs = []
    for source, move in zip(batch.sources, batch.moves, strict=True):
        if move.reduce and move.chunk not in held:
            raise InputError(
                f"chunk {move.chunk} is to be reduced at rank {move.dst}, which holds nothing to add it to"
            )
        target = layout.store(move.dst, move.chunk)
        runs.append(ChunkRange(source, target, held[move.chunk] if move.reduce else None))
        held[move.chunk] = target
    batch.runs = _joined(runs)


def batches_of(decisions: CollectiveDecisions) -> list[Batch]:
    """Transfers of one message together, by send time, then by link."""
    groups: dict[tuple[int, int, int, int], list[Transfer]] = defaultdict(list)
    for move in decisions.transfers:
        groups[move.send_ns, move.src, move.dst, move.batch].append(move)
    return [Batch(groups[key]) for key in sorted(groups)]


def events_of(batches: Sequence[Batch]) -> list[Event]:
    """Departures and arrivals in causal order, earliest first.

    A batch arrives after it leaves. A chunk leaves a rank with everything that has arrived there by that time, and
    nothing later. Raises InputError where transfers of no duration make that a circle.
    """
    leaves = [Event(batch.moves[0].send_ns, LEAVES, number) for number, batch in enumerate(batches)]
    arrives = [
        Event(max(move.arrive_ns for move in batch.moves), ARRIVES, number) for number, batch in enumerate(batches)
    ]
    before: dict[Event, set[Event]] = {event: set() for event in leaves}
    before |= {arrival: {leaving} for leaving, arrival in zip(leaves, arrives, strict=True)}
    arrivals: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for arrival in arrives:
        for move in batches[arrival.number].moves:
            arrivals[move.dst, move.chunk].append(arrival)
    for leaving in leaves:
        for move in batches[leaving.number].moves:
            for arrival in arrivals[move.src, move.chunk]:
                if arrival.time <= leaving.time:
                    before[leaving].add(arrival)
                else:
                    before[arrival].add(leaving)
    return _sorted(before, batches)


def _sorted(before: dict[Event, set[Event]], batches: Sequence[Batch]) -> list[Event]:
    """Topological order; among the events that may come next the least first."""
    open_before = {event: len(events) for event, events in before.items()}
    followers: dict[Event, list[Event]] = defaultdict(list)
    for event, events in before.items():
        for other in events:
            followers[other].append(event)
    ready = [event for event, count in open_before.items() if count == 0]
    heapq.heapify(ready)
    result: list[Event] = []
    while ready:
        event = heapq.heappop(ready)
        result.append(event)
        for follower in followers[event]:
            open_before[follower] -= 1
            if open_before[follower] == 0:
                heapq.heappush(ready, follower)
    if len(result) < len(before):
        stuck = min(event for event, count in open_before.items() if count)
        move = batches[stuck.number].moves[0]
        raise InputError(
            f"chunk {move.chunk} sent from {move.src} to {move.dst} at {move.send_ns} ns waits for itself: "
            "transfers of no duration go round in a circle"
        )
    return result
