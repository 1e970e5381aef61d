"""Lowering: an abstract algorithm becomes an executable program (TACCL, section 5.6.1).

In order: every rank's copy of a chunk gets a place in input, output or scratch; transfers become send and receive
steps, batches of neighbouring chunks one step each, cut into one sub-chunk per instance; receives and sends of the same
chunks are fused; what is left goes into a threadblock per (rank, channel, peer, direction) in the order of the
schedule; dependences between threadblocks that nothing else implies are written down, one per step, the others on
`nop` steps before it. Where the decisions say so, messages through one port of a rank depend on each other as well, in
the order of the schedule.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from treadle.codegen.collective.depend import waits
from treadle.codegen.collective.fuse import Fused, TooLong, fuse
from treadle.codegen.collective.placement import (
    Batch,
    ChunkRange,
    Event,
    Layout,
    Operand,
    batches_of,
    events_of,
    place_chunks,
)
from treadle.codegen.collective.program import BlockStep, CollectiveProgram, RankProgram, Threadblock
from treadle.codegen.collective.switched import require_messages
from treadle.codegen.collective.unplaced import UnplacedStep, chunks, unplaced_steps
from treadle.planner.passes.collective.algorithm import CollectiveDecisions, Port
from treadle.planner.passes.collective.collectives import ROOTED

BlockKey = tuple[int, int, int, int]
"""(channel, kind, recv peer or -1, send peer or -1): kind 0 copies, 1 receives (and may send), 2 sends."""

COPY, RECEIVE, SEND = 0, 1, 2


def lower(
    decisions: CollectiveDecisions, *, inplace: bool = False, fuse: bool = True, merge: bool = False, lanes: int = 1
) -> CollectiveProgram:
    """The program of `decisions` for calls in place or out of place; the caller's input is never written out of place.

    With `fuse` a rank sends on what it receives in one step where that pays and the decisions allow it; such a program
    needs two message slots per connection, as every protocol has them. With `merge` receiving and sending threadblocks
    are joined also where nothing is fused, so that each rank has as few as its peers allow. Each instance spreads its
    chunks over `lanes` channels, so that its threadblocks are more and shorter.

    Raises InputError for what switches do, when a transfer sends what its source does not have, when
    transfers of no duration wait for one another, and for alltoall and irregular collectives in place, which would need
    a copy of the whole input.
    """
    require_messages(decisions)
    layout = Layout(decisions, inplace)
    batches = batches_of(decisions)
    events = events_of(batches)
    copies = place_chunks(decisions, layout, batches, events)
    total = decisions.instances
    cut = 1 if _instances_are_alike(batches, copies) else total
    fused = _fused(layout, copies, batches, events, cut, lanes, pairs=fuse and decisions.fused, merge=merge)
    before = _in_turn(fused, decisions.ports, lanes) if decisions.ordered else fused.hazards
    threadblocks, scratch = _threadblocks(fused, before, decisions.ranks, fenced=decisions.protocol == "Simple")
    parts = total // cut
    sizes = [layout.sizes(rank) for rank in range(decisions.ranks)]
    ranks = tuple(
        RankProgram(
            input_chunks=given * total,
            output_chunks=made * total,
            scratch_chunks=scratch[rank] * parts,
            threadblocks=threadblocks[rank] if parts == 1 else tuple(_copies_of(threadblocks[rank], parts, lanes)),
        )
        for rank, (given, made) in enumerate(sizes)
    )
    return CollectiveProgram(
        name=f"treadle_{decisions.collective}_{decisions.ranks}" + "_inplace" * inplace,
        collective=decisions.collective,
        ranks=ranks,
        chunks_per_loop=layout.loop * total,
        channels=total * lanes,
        protocol=decisions.protocol,
        inplace=inplace,
        outofplace=not inplace,
        root=decisions.root if decisions.collective in ROOTED else None,
    )


def _fused(
    layout: Layout,
    copies: Sequence[Sequence[ChunkRange]],
    batches: Sequence[Batch],
    events: Sequence[Event],
    cut: int,
    lanes: int,
    **options: bool,
) -> Fused:
    """The sorted steps; messages of several chunks that would wait for themselves are taken apart."""
    outputs = [
        {(buffer, index * cut + i) for buffer, index in places.values() for i in range(cut)}
        for places in layout.outputs
    ]
    while True:
        try:
            return fuse(lambda: unplaced_steps(copies, batches, events, cut, lanes), outputs, **options)
        except TooLong as long:
            for batch in batches:
                if (batch.src, batch.dst) in long.links:
                    batch.runs = [single for run in batch.runs for single in run.singles()]


# Instances.


def _instances_are_alike(batches: Sequence[Batch], copies: Sequence[Sequence[ChunkRange]]) -> bool:
    """Whether each instance does the same on its own sub-chunks: so it is where chunks move one by one and nothing
    waits for a copy of several, since a cut through a run of several gives an instance sub-chunks of only some."""
    if any(run.size > 1 for batch in batches for run in batch.runs):
        return False
    single = all(run.size == 1 for runs in copies for run in runs)
    return single or all(len(batch.moves) == 1 for batch in batches)


def _copies_of(blocks: Sequence[Threadblock], parts: int, lanes: int) -> Iterator[Threadblock]:
    """The threadblocks of all instances, `lanes` channels each: sub-chunk i of every chunk is that of instance i, and
    part i of a copy of several."""
    for i in range(parts):
        first = i * len(blocks)
        for block in blocks:
            steps = tuple(
                replace(
                    step,
                    src=step.src and (step.src[0], step.src[1] * parts + i * step.count),
                    dst=step.dst and (step.dst[0], step.dst[1] * parts + i * step.count),
                    depends=step.depends and (step.depends[0] + first, step.depends[1]),
                )
                for step in block.steps
            )
            yield replace(block, channel=i * lanes + block.channel, steps=steps)


# Threadblocks.


def _in_turn(fused: Fused, ports: Sequence[Port], lanes: int) -> list[list[int]]:
    """The places that each step must follow: its hazards and, where it sends, the last step of its rank and instance
    that sends before it through the same port, by the schedule and by the order of the steps."""
    through: dict[tuple[int, int], list[str]] = defaultdict(list)
    for port in ports:
        for link in port.links if port.beta_ns is None else ():
            through[link].append(port.name)
    sent: dict[tuple[int, int, str], list[tuple[int, int]]] = defaultdict(list)
    before = []
    for place, (step, others) in enumerate(zip(fused.steps, fused.hazards, strict=True)):
        needed = set(others)
        if step.send is not None:
            for name in through[step.rank, step.send]:
                earlier = sent[step.rank, step.channel // lanes, name]
                at = bisect(earlier, (step.leaves, place))
                if at:
                    needed.add(earlier[at - 1][1])
                earlier.insert(at, (step.leaves, place))
        before.append(sorted(needed))
    return before


def _threadblocks(
    fused: Fused, before: Sequence[Sequence[int]], ranks: int, *, fenced: bool
) -> tuple[list[tuple[Threadblock, ...]], list[int]]:
    """The threadblocks of every rank, sorted by channel and peers, and how many scratch chunks it uses; `before` are
    the places that each step must follow."""
    steps = fused.steps
    keys = [_key(step, fused) for step in steps]
    owners = [(step.rank, *key) for step, key in zip(steps, keys, strict=True)]
    awaits = waits(steps, before, owners, fenced=fenced)
    members: list[dict[BlockKey, list[int]]] = [{} for _ in range(ranks)]
    for place, (step, key) in enumerate(zip(steps, keys, strict=True)):
        members[step.rank].setdefault(key, []).append(place)
    positions: dict[int, tuple[int, int]] = {}
    for blocks in members:
        for number, key in enumerate(sorted(blocks)):
            length = 0
            for place in blocks[key]:
                length += max(1, len(awaits[place]))
                positions[place] = number, length - 1
    awaited = {other for places in awaits for other in places}
    scratch = _scratch(steps, ranks)
    operands = _Operands(steps, scratch)
    result = []
    for blocks in members:
        made = []
        for key in sorted(blocks):
            listed: list[BlockStep] = []
            for place in blocks[key]:
                depends = sorted(positions[other] for other in awaits[place])
                listed += [BlockStep("nop", count=0, depends=other) for other in depends[:-1]]
                source, target = operands.of(steps[place])
                last = depends[-1] if depends else None
                listed.append(BlockStep(steps[place].type, source, target, steps[place].size, last, place in awaited))
            channel, _, recv, send = key
            made.append(Threadblock(None if send < 0 else send, None if recv < 0 else recv, channel, tuple(listed)))
        result.append(tuple(made))
    return result, [len(used) for used in scratch]


def _key(step: UnplacedStep, fused: Fused) -> BlockKey:
    recv, send = fused.peers(step)
    kind = COPY if recv < 0 and send < 0 else SEND if recv < 0 else RECEIVE
    return step.channel, kind, recv, send


def _scratch(steps: Sequence[UnplacedStep], ranks: int) -> list[dict[int, int]]:
    """By rank, where each scratch chunk that is still used goes when the others leave; neighbours stay neighbours."""
    used: list[set[int]] = [set() for _ in range(ranks)]
    for step in steps:
        for operand in (step.reads, step.writes):
            if operand is not None and operand[0] == "s":
                used[step.rank].update(index for _, index in chunks(operand, step.size))
    return [{index: place for place, index in enumerate(sorted(indices))} for indices in used]


class _Operands:
    """What a step names as its source and destination; what is not local says where the peer has it."""

    def __init__(self, steps: Sequence[UnplacedStep], scratch: Sequence[dict[int, int]]) -> None:
        self.receivers = {id(step.message): step for step in steps if step.message is not None}
        self.scratch = scratch

    def of(self, step: UnplacedStep) -> tuple[Operand | None, Operand | None]:
        source, target = self._at(step.rank, step.reads), self._at(step.rank, step.writes)
        if source is None and step.message is not None:
            source = self._at(step.message.rank, step.message.sent)
        if target is None and (receiver := self.receivers.get(id(step))) is not None:
            target = self._at(receiver.rank, receiver.writes)
        return source, target

    def _at(self, rank: int, operand: Operand | None) -> Operand | None:
        if operand is None or operand[0] != "s":
            return operand
        return "s", self.scratch[rank][operand[1]]
