"""Lowering: an abstract algorithm becomes an executable program (TACCL, section 5.6.1; spec 4.2).

In order: every rank's copy of a chunk gets a place in input, output or scratch; transfers become send and receive
steps, batches of neighbouring chunks one step each; a threadblock per (rank, channel, peer, direction) collects them
in the order of the schedule; chunks are cut into one sub-chunk per instance; dependences between threadblocks are
found on sub-chunks and written down, one per step, the others on `nop` steps before it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from codegen.program import Buffer, Program, RankProgram, Step, StepType, Threadblock, home
from planner.collective.algorithm import CollectiveDecisions, Transfer
from planner.errors import InputError

Operand = tuple[Buffer, int]
BlockKey = tuple[int, int, int]
"""(channel, direction, peer): direction 0 copies, 1 receives, 2 sends."""

COPY, RECEIVE, SEND = 0, 1, 2


def lower(decisions: CollectiveDecisions, *, inplace: bool = False) -> Program:
    """The program of `decisions` for calls in place or out of place; the caller's input is never written out of place.

    Raises InputError when a transfer sends what its source does not have, when transfers of no duration wait for one
    another, and for alltoall in place, which would need a copy of the whole input.
    """
    if inplace and decisions.collective == "alltoall":
        raise InputError("alltoall cannot run in place", where=_name(decisions, inplace))
    layout = _Layout(decisions, inplace)
    batches = _batches(decisions)
    events = _events(batches)
    copies = _place(decisions, layout, batches, events)
    drafts = _drafts(decisions, copies, batches, events)
    parts = decisions.instances
    given, made = layout.sizes()
    ranks = tuple(
        RankProgram(
            input_chunks=given * parts,
            output_chunks=made * parts,
            scratch_chunks=len(layout.scratch[rank]) * parts,
            threadblocks=_threadblocks(drafts[rank]),
        )
        for rank in range(decisions.ranks)
    )
    return Program(
        name=_name(decisions, inplace),
        collective=decisions.collective,
        ranks=ranks,
        chunks_per_loop=layout.loop * parts,
        channels=parts,
        protocol=decisions.protocol,
        inplace=inplace,
        outofplace=not inplace,
        root=decisions.root if decisions.collective in ("broadcast", "reduce") else None,
    )


def _name(decisions: CollectiveDecisions, inplace: bool) -> str:
    return f"treadle_{decisions.collective}_{decisions.ranks}" + ("_inplace" if inplace else "")


# Placement.


class _Layout:
    """Where each rank keeps each chunk: input and output indices by the collective's rule, scratch by first use."""

    def __init__(self, decisions: CollectiveDecisions, inplace: bool) -> None:
        self.collective, self.ranks, self.pieces = decisions.collective, decisions.ranks, decisions.chunkup
        self.root, self.inplace = decisions.root or 0, inplace
        rooted = self.collective in ("broadcast", "reduce")
        self.loop = self.pieces * (1 if rooted else self.ranks)
        self.scratch: list[dict[int, int]] = [{} for _ in range(self.ranks)]

    @property
    def part(self) -> int:
        """Chunks of one rank's part, as `Program.part_chunks` counts them, before the cut into instances."""
        return self.pieces if self.collective in ("allgather", "reducescatter", "alltoall") else self.loop

    def sizes(self) -> tuple[int, int]:
        """Input and output chunks; in place, the buffer that the other one contains is left out."""
        given = self.pieces if self.collective == "allgather" else self.loop
        made = self.pieces if self.collective == "reducescatter" else self.loop
        if not self.inplace:
            return given, made
        return (0, made) if self.collective == "allgather" else (given, 0)

    def count(self) -> int:
        """How many chunks the collective has."""
        return self.loop * (self.ranks if self.collective == "alltoall" else 1)

    def input(self, rank: int, chunk: int) -> Operand | None:
        """Where `rank` holds `chunk` (or its contribution to it) before the call."""
        match self.collective:
            case "allgather":
                index = chunk - rank * self.pieces if chunk // self.pieces == rank else None
            case "alltoall":
                index = chunk - rank * self.loop if chunk // self.loop == rank else None
            case "broadcast":
                index = chunk if rank == self.root else None
            case _:
                index = chunk
        return None if index is None else self.at(rank, "i", index)

    def output(self, rank: int, chunk: int) -> Operand | None:
        """Where `rank` must hold `chunk` after the call."""
        match self.collective:
            case "reducescatter":
                index = chunk - rank * self.pieces if chunk // self.pieces == rank else None
            case "alltoall":
                owner, rest = divmod(chunk, self.loop)
                target, piece = divmod(rest, self.pieces)
                index = owner * self.pieces + piece if target == rank else None
            case "reduce":
                index = chunk if rank == self.root else None
            case _:
                index = chunk
        return None if index is None else self.at(rank, "o", index)

    def at(self, rank: int, buffer: Buffer, index: int) -> Operand:
        return home(self.collective, self.part, rank, buffer, index) if self.inplace else (buffer, index)

    def store(self, rank: int, chunk: int) -> Operand:
        """Where `rank` puts a chunk that arrives: its output, or scratch for what only passes through."""
        return self.output(rank, chunk) or ("s", self.scratch[rank].setdefault(chunk, len(self.scratch[rank])))


@dataclass(frozen=True, slots=True)
class _Run:
    """`size` chunks side by side in every operand: a local copy, or what one message moves.

    `addend` is what a reducing receive adds to what arrives.
    """

    source: Operand
    target: Operand
    addend: Operand | None = None
    size: int = 1

    def joined(self, other: _Run) -> _Run | None:
        """This run with the one chunk of `other` behind it, None where they are no neighbours."""
        addend = None if self.addend is None else _behind(self.addend, self.size)
        if (_behind(self.source, self.size), _behind(self.target, self.size), addend) != (
            other.source,
            other.target,
            other.addend,
        ):
            return None
        return replace(self, size=self.size + 1)

    def part(self, instance: int, instances: int) -> _Run:
        """Sub-chunks [off*n + i*size, off*n + (i+1)*size) of every operand for instance i of n."""

        def cut(operand: Operand) -> Operand:
            return operand[0], operand[1] * instances + instance * self.size

        addend = None if self.addend is None else cut(self.addend)
        return _Run(cut(self.source), cut(self.target), addend, self.size)


def _behind(operand: Operand, size: int) -> Operand:
    return operand[0], operand[1] + size


def _joined(runs: Iterable[_Run]) -> list[_Run]:
    result: list[_Run] = []
    for run in runs:
        longer = result[-1].joined(run) if result else None
        if longer is None:
            result.append(run)
        else:
            result[-1] = longer
    return result


@dataclass(slots=True)
class _Batch:
    """Transfers of one link that leave together. `sources` and `runs` are filled in when it leaves and arrives."""

    moves: list[Transfer]
    sources: list[Operand] = field(default_factory=list)
    runs: list[_Run] = field(default_factory=list)

    @property
    def src(self) -> int:
        return self.moves[0].src

    @property
    def dst(self) -> int:
        return self.moves[0].dst


class _Event(NamedTuple):
    """A batch arrives (kind 0) or leaves (kind 1); at one time arrivals come first."""

    time: int
    kind: int
    number: int


ARRIVES, LEAVES = 0, 1


def _place(
    decisions: CollectiveDecisions, layout: _Layout, batches: Sequence[_Batch], events: Iterable[_Event]
) -> list[list[_Run]]:
    """Give every batch its runs, and return each rank's local copies.

    A chunk that starts and ends at a rank is copied from input to output before anything else; it is sent from there
    where it may be a neighbour of the other chunks of its batch, and straight from the input when it goes alone.
    """
    ranks = range(decisions.ranks)
    held = [
        {chunk: place for chunk in range(layout.count()) if (place := layout.input(rank, chunk)) is not None}
        for rank in ranks
    ]
    arriving = {(move.dst, move.chunk) for move in decisions.transfers}
    copied = [
        {
            chunk: (source, target)
            for chunk, source in held[rank].items()
            if (target := layout.output(rank, chunk)) not in (None, source) and (rank, chunk) not in arriving
        }
        for rank in ranks
    ]
    for event in events:
        batch = batches[event.number]
        if event.kind == LEAVES:
            _leave(batch, held[batch.src], copied[batch.src])
        else:
            _arrive(batch, held[batch.dst], layout)
    return [_joined(_Run(source, target) for source, target in sorted(pairs.values())) for pairs in copied]


def _leave(batch: _Batch, held: dict[int, Operand], copied: dict[int, tuple[Operand, Operand]]) -> None:
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


def _arrive(batch: _Batch, held: dict[int, Operand], layout: _Layout) -> None:
    runs = []
    for source, move in zip(batch.sources, batch.moves, strict=True):
        if move.reduce and move.chunk not in held:
            raise InputError(
                f"chunk {move.chunk} is to be reduced at rank {move.dst}, which holds nothing to add it to"
            )
        target = layout.store(move.dst, move.chunk)
        runs.append(_Run(source, target, held[move.chunk] if move.reduce else None))
        held[move.chunk] = target
    batch.runs = _joined(runs)


def _batches(decisions: CollectiveDecisions) -> list[_Batch]:
    """Transfers of one message together, by send time, then by link."""
    groups: dict[tuple[int, int, int, int], list[Transfer]] = defaultdict(list)
    for move in decisions.transfers:
        groups[move.send_ns, move.src, move.dst, move.batch].append(move)
    return [_Batch(groups[key]) for key in sorted(groups)]


def _events(batches: Sequence[_Batch]) -> list[_Event]:
    """Departures and arrivals in causal order, earliest first.

    A batch arrives after it leaves. A chunk leaves a rank with everything that has arrived there by that time, and
    nothing later. Raises InputError where transfers of no duration make that a circle.
    """
    leaves = [_Event(batch.moves[0].send_ns, LEAVES, number) for number, batch in enumerate(batches)]
    arrives = [
        _Event(max(move.arrive_ns for move in batch.moves), ARRIVES, number) for number, batch in enumerate(batches)
    ]
    before: dict[_Event, set[_Event]] = {event: set() for event in leaves}
    before |= {arrival: {leaving} for leaving, arrival in zip(leaves, arrives, strict=True)}
    arrivals: dict[tuple[int, int], list[_Event]] = defaultdict(list)
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


def _sorted(before: dict[_Event, set[_Event]], batches: Sequence[_Batch]) -> list[_Event]:
    """Topological order; among the events that may come next the least first."""
    open_before = {event: len(events) for event, events in before.items()}
    followers: dict[_Event, list[_Event]] = defaultdict(list)
    for event, events in before.items():
        for other in events:
            followers[other].append(event)
    ready = [event for event, count in open_before.items() if count == 0]
    heapq.heapify(ready)
    result: list[_Event] = []
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


# Steps.


@dataclass(slots=True, eq=False)
class _Draft:
    """A step before its number is known. `reads` and `writes` are local."""

    type: StepType
    run: _Run
    reads: Operand | None
    writes: Operand | None
    key: BlockKey
    position: int = 0
    waits: list[_Draft] = field(default_factory=list)


def _drafts(
    decisions: CollectiveDecisions,
    copies: Sequence[Sequence[_Run]],
    batches: Sequence[_Batch],
    events: Iterable[_Event],
) -> list[list[_Draft]]:
    """Steps of each rank in causal order, everything cut into sub-chunks, one channel per instance."""
    drafts: list[list[_Draft]] = [[] for _ in range(decisions.ranks)]
    total = decisions.instances
    for rank, runs in enumerate(copies):
        for run in runs:
            for i in range(total):
                part = run.part(i, total)
                drafts[rank].append(_Draft("cpy", part, part.source, part.target, (i, COPY, -1)))
    for event in events:
        batch = batches[event.number]
        for run in batch.runs:
            for i in range(total):
                part = run.part(i, total)
                if event.kind == LEAVES:
                    drafts[batch.src].append(_Draft("s", part, part.source, None, (i, SEND, batch.dst)))
                else:
                    kind: StepType = "r" if part.addend is None else "rrc"
                    drafts[batch.dst].append(_Draft(kind, part, part.addend, part.target, (i, RECEIVE, batch.src)))
    return drafts


def _threadblocks(drafts: Sequence[_Draft]) -> tuple[Threadblock, ...]:
    """The steps of one rank with their dependences, grouped into threadblocks, numbered."""
    _depend(drafts)
    blocks: dict[BlockKey, list[_Draft]] = {key: [] for key in sorted({draft.key for draft in drafts})}
    number = {key: index for index, key in enumerate(blocks)}
    length = dict.fromkeys(blocks, 0)
    for draft in drafts:
        draft.position = length[draft.key] + max(0, len(draft.waits) - 1)
        length[draft.key] = draft.position + 1
        blocks[draft.key].append(draft)
    awaited = {id(other) for draft in drafts for other in draft.waits}
    result = []
    for (channel, direction, peer), members in blocks.items():
        steps: list[Step] = []
        for draft in members:
            waits = sorted((number[other.key], other.position) for other in draft.waits)
            steps += [Step("nop", count=0, depends=depends) for depends in waits[:-1]]
            steps.append(
                Step(
                    type=draft.type,
                    src=draft.reads or draft.run.source,
                    dst=draft.run.target,
                    count=draft.run.size,
                    depends=waits[-1] if waits else None,
                    awaited=id(draft) in awaited,
                )
            )
        result.append(
            Threadblock(
                send=peer if direction == SEND else None,
                recv=peer if direction == RECEIVE else None,
                channel=channel,
                steps=tuple(steps),
            )
        )
    return tuple(result)


def _depend(drafts: Sequence[_Draft]) -> None:
    """Fill in `waits`: a read waits for the last write; a write for the reads since, or for the last write if none.

    Left out is what the threadblock has itself done or waited for before.
    """
    written: dict[Operand, int] = {}
    read: dict[Operand, list[int]] = defaultdict(list)
    known: dict[BlockKey, dict[BlockKey, int]] = defaultdict(dict)
    for place, draft in enumerate(drafts):
        reads, writes = _addresses(draft.reads, draft.run.size), _addresses(draft.writes, draft.run.size)
        needed = [written[address] for address in reads if address in written]
        for address in writes:
            needed += read[address] or ([written[address]] if address in written else [])
        latest: dict[BlockKey, int] = {}
        for other in sorted(needed):
            latest[drafts[other].key] = other
        for key, other in sorted(latest.items()):
            if key != draft.key and known[draft.key].get(key, -1) < other:
                known[draft.key][key] = other
                draft.waits.append(drafts[other])
        for address in reads:
            read[address].append(place)
        for address in writes:
            written[address], read[address] = place, []


def _addresses(operand: Operand | None, size: int) -> list[Operand]:
    return [] if operand is None else [(operand[0], operand[1] + k) for k in range(size)]
