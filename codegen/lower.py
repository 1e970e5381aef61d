"""Lowering: an abstract algorithm becomes an executable program (TACCL, section 5.6.1; spec 4.2).

In order: every rank's copy of a chunk gets a place in input, output or scratch; transfers become send and receive
steps, batches of neighbouring chunks one step each; a threadblock per (rank, channel, peer, direction) collects them
in the order of the schedule; chunks are cut into one sub-chunk per instance; dependences between threadblocks are
found on sub-chunks and written down, one per step, the others on `nop` steps before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from codegen.placement import LEAVES, Batch, Event, Layout, Operand, Run, batches_of, events_of, place_chunks
from codegen.program import Program, RankProgram, Step, StepType, Threadblock
from planner.collective.algorithm import CollectiveDecisions
from planner.errors import InputError

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
    layout = Layout(decisions, inplace)
    batches = batches_of(decisions)
    events = events_of(batches)
    copies = place_chunks(decisions, layout, batches, events)
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


@dataclass(slots=True, eq=False)
class _Draft:
    """A step before its number is known. `reads` and `writes` are local."""

    type: StepType
    run: Run
    reads: Operand | None
    writes: Operand | None
    key: BlockKey
    position: int = 0
    waits: list[_Draft] = field(default_factory=list)


def _drafts(
    decisions: CollectiveDecisions,
    copies: Sequence[Sequence[Run]],
    batches: Sequence[Batch],
    events: Iterable[Event],
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
