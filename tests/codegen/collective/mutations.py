"""Mutations that break a collective program, each at the first place where it must matter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from treadle.codegen.collective.program import (
    READING,
    RECEIVING,
    SENDING,
    WRITING,
    BlockStep,
    CollectiveProgram,
    Place,
    Threadblock,
)

Mutation = Callable[[CollectiveProgram], CollectiveProgram | None]
"""None where a program has no place for it."""


def with_rank(program: CollectiveProgram, rank: int, **changes: object) -> CollectiveProgram:
    ranks = list(program.ranks)
    ranks[rank] = replace(ranks[rank], **changes)
    return replace(program, ranks=tuple(ranks))


def with_block(program: CollectiveProgram, rank: int, block: int, **changes: object) -> CollectiveProgram:
    blocks = list(program.ranks[rank].threadblocks)
    blocks[block] = replace(blocks[block], **changes)
    return with_rank(program, rank, threadblocks=tuple(blocks))


def with_step(program: CollectiveProgram, rank: int, block: int, position: int, **changes: object) -> CollectiveProgram:
    """The program with one step changed."""
    steps = list(program.ranks[rank].threadblocks[block].steps)
    steps[position] = replace(steps[position], **changes)
    return with_block(program, rank, block, steps=tuple(steps))


def places(
    program: CollectiveProgram, wanted: Callable[[Threadblock, BlockStep], bool]
) -> Iterator[tuple[Place, Threadblock, BlockStep]]:
    """From the middle rank on, so that the first rank's special cases do not decide."""
    found = [entry for entry in program.steps() if wanted(entry[1], entry[2])]
    middle = len(program.ranks) // 2
    return iter(sorted(found, key=lambda entry: (entry[0].rank < middle, entry[0])))


def at_first(
    wanted: Callable[[Threadblock, BlockStep], bool],
    change: Callable[[CollectiveProgram, Place, BlockStep], CollectiveProgram],
) -> Mutation:
    def mutate(program: CollectiveProgram) -> CollectiveProgram | None:
        place, _, step = next(places(program, wanted), (None, None, None))
        return None if place is None or step is None else change(program, place, step)

    return mutate


def of_type(types: frozenset[str] | set[str]) -> Callable[[Threadblock, BlockStep], bool]:
    return lambda block, step: step.type in types


def at_step(types: frozenset[str] | set[str], changes: Callable[[BlockStep], dict[str, object]]) -> Mutation:
    return at_first(of_type(types), lambda program, place, step: with_step(program, *place, **changes(step)))


def at_block(
    types: frozenset[str] | set[str], changes: Callable[[CollectiveProgram, Place], dict[str, object]]
) -> Mutation:
    return at_first(
        of_type(types), lambda program, place, step: with_block(program, *place[:2], **changes(program, place))
    )


def size(program: CollectiveProgram, place: Place, buffer: str) -> int:
    ranked = program.ranks[place.rank]
    return {"i": ranked.input_chunks, "o": ranked.output_chunks, "s": ranked.scratch_chunks}[buffer]


def behind(side: str) -> Callable[[CollectiveProgram, Place, BlockStep], CollectiveProgram]:
    def change(program: CollectiveProgram, place: Place, step: BlockStep) -> CollectiveProgram:
        buffer = getattr(step, side)[0]
        last = size(program, place, buffer)
        return with_step(program, *place, **{side: (buffer, last - step.count + 1)})

    return change


def duplicate_connection(program: CollectiveProgram, place: Place, step: BlockStep) -> CollectiveProgram:
    blocks = program.ranks[place.rank].threadblocks
    return with_rank(program, place.rank, threadblocks=(*blocks, replace(blocks[place.threadblock], steps=())))


def drop_last(types: frozenset[str]) -> Mutation:
    def mutate(program: CollectiveProgram) -> CollectiveProgram | None:
        def last(block: Threadblock, step: BlockStep) -> bool:
            return step is block.steps[-1] and step.type in types and not step.awaited and step.depends is None

        place, block, _ = next(places(program, last), (None, None, None))
        return None if place is None or block is None else with_block(program, *place[:2], steps=block.steps[:-1])

    return mutate


def repeat_last_send(program: CollectiveProgram) -> CollectiveProgram | None:
    def last(block: Threadblock, step: BlockStep) -> bool:
        return step is block.steps[-1] and step.type == "s"

    place, block, step = next(places(program, last), (None, None, None))
    if place is None or block is None or step is None:
        return None
    return with_block(program, *place[:2], steps=(*block.steps, replace(step, awaited=False)))


def other_chunk(side: str, types: frozenset[str]) -> Mutation:
    """The operand moves to an adjacent chunk."""

    def mutate(program: CollectiveProgram) -> CollectiveProgram | None:
        for place, _, step in places(program, of_type(types)):
            operand = getattr(step, side)
            if operand is None or size(program, place, operand[0]) <= step.count:
                continue
            at = operand[1] + 1 if operand[1] + step.count < size(program, place, operand[0]) else operand[1] - 1
            return with_step(program, *place, **{side: (operand[0], at)})
        return None

    return mutate


def swap_sends(program: CollectiveProgram) -> CollectiveProgram | None:
    """Two sends of different chunks, one after the other without a dependence between."""
    for place, block, step in places(program, of_type({"s"})):
        after = block.steps[place.step + 1] if place.step + 1 < len(block.steps) else None
        if after is not None and after.type == "s" and after.src != step.src and after.depends == step.depends is None:
            first, second = replace(after, awaited=step.awaited), replace(step, awaited=after.awaited)
            steps = (*block.steps[: place.step], first, second, *block.steps[place.step + 2 :])
            return with_block(program, *place[:2], steps=steps)
    return None


def swap_peers(program: CollectiveProgram) -> CollectiveProgram | None:
    """Two threadblocks of a rank send to each other's peer."""
    for rank, ranked in enumerate(program.ranks):
        sending = [
            n for n, block in enumerate(ranked.threadblocks) if any(step.type in SENDING for step in block.steps)
        ]
        for other in sending[1:]:
            one, two = ranked.threadblocks[sending[0]], ranked.threadblocks[other]
            if one.send != two.send and [s.src for s in one.steps] != [s.src for s in two.steps]:
                changed = with_block(program, rank, sending[0], send=two.send, channel=two.channel)
                return with_block(changed, rank, other, send=one.send, channel=one.channel)
    return None


def forget_waits(program: CollectiveProgram) -> CollectiveProgram | None:
    """One rank runs as if its threadblocks needed nothing of each other."""
    rank = next((place.rank for place, _, _ in places(program, lambda block, step: step.depends is not None)), None)
    if rank is None:
        return None
    for index, block in enumerate(program.ranks[rank].threadblocks):
        steps = tuple(replace(step, depends=None) for step in block.steps if step.type != "nop")
        program = with_block(program, rank, index, steps=steps)
    return program


def wait_for_each_other(program: CollectiveProgram) -> CollectiveProgram | None:
    for rank, ranked in enumerate(program.ranks):
        filled = [index for index, block in enumerate(ranked.threadblocks) if block.steps]
        if len(filled) > 1:
            for one, two in (filled[:2], filled[1::-1]):
                program = with_step(program, rank, one, 0, depends=(two, len(ranked.threadblocks[two].steps) - 1))
                last = len(program.ranks[rank].threadblocks[one].steps) - 1
                program = with_step(program, rank, one, last, awaited=True)
            return program
    return None


def empty_block(program: CollectiveProgram, place: Place, step: BlockStep) -> CollectiveProgram:
    return with_block(program, *place[:2], steps=())


def overwrite_input(program: CollectiveProgram) -> CollectiveProgram | None:
    if program.inplace or not all(ranked.input_chunks for ranked in program.ranks):
        return None
    change = at_first(
        lambda block, step: step.type == "r" and step.count == 1,
        lambda program, place, step: with_step(program, *place, dst=("i", 0)),
    )
    return change(program)


def read_unwritten_scratch(program: CollectiveProgram) -> CollectiveProgram | None:
    for place, _, step in places(program, of_type({"s", "cpy"})):
        scratch = program.ranks[place.rank].scratch_chunks
        changed = with_rank(program, place.rank, scratch_chunks=scratch + step.count)
        return with_step(changed, *place, src=("s", scratch))
    return None


def shrink_output(program: CollectiveProgram) -> CollectiveProgram | None:
    rank = len(program.ranks) // 2
    buffer = "output_chunks" if program.ranks[rank].output_chunks else "input_chunks"
    return with_rank(program, rank, **{buffer: getattr(program.ranks[rank], buffer) - 1})


def add_twice(program: CollectiveProgram) -> CollectiveProgram | None:
    """A sum is added once more."""
    for place, block, step in places(program, of_type({"re"})):
        if place.step == len(block.steps) - 1:
            again = replace(step, depends=None, awaited=False)
            return with_block(program, *place[:2], steps=(*block.steps, again))
    return None


REDUCING = {"rrc": "r", "rrcs": "rcs", "re": "cpy", "rrs": "rcs"}

MUTATIONS: dict[str, Mutation] = {
    "source behind its buffer": at_first(of_type({"s", "cpy"}), behind("src")),
    "destination behind its buffer": at_first(of_type(WRITING), behind("dst")),
    "peer out of range": at_block({"s"}, lambda program, place: {"send": len(program.ranks)}),
    "peer is the gpu itself": at_block(RECEIVING, lambda program, place: {"recv": place.rank}),
    "channel out of range": at_block({"s"}, lambda program, place: {"channel": program.channels}),
    "connection twice": at_first(of_type(SENDING), duplicate_connection),
    "sender without a peer": at_block(SENDING, lambda program, place: {"send": None}),
    "receiver without a peer": at_block(RECEIVING, lambda program, place: {"recv": None}),
    "receive left out": drop_last(RECEIVING),
    "send left out": drop_last(SENDING),
    "send twice": repeat_last_send,
    "count of one end": at_step(SENDING, lambda step: {"count": step.count + 1}),
    "no chunk": at_step({"s"}, lambda step: {"count": 0}),
    "no source": at_step(READING, lambda step: {"src": None}),
    "no destination": at_step(WRITING, lambda step: {"dst": None}),
    "hasdep cleared": at_first(
        lambda block, step: step.awaited, lambda program, place, step: with_step(program, *place, awaited=False)
    ),
    "wait for a missing threadblock": at_step({"s"}, lambda step: {"depends": (10**4, 0)}),
    "wait for a missing step": at_step({"s"}, lambda step: {"depends": (0, 10**4)}),
    "wait for itself": at_first(
        of_type(SENDING),
        lambda program, place, step: with_step(program, *place, depends=(place.threadblock, place.step)),
    ),
    "wait for each other": wait_for_each_other,
    "waits left out": forget_waits,
    "wrong chunk sent": other_chunk("src", frozenset({"s"})),
    "wrong place written": other_chunk("dst", WRITING),
    "sends swapped": swap_sends,
    "peers swapped": swap_peers,
    "threadblock without steps": at_first(of_type(SENDING | RECEIVING), empty_block),
    "sum turned into a copy": at_step(set(REDUCING), lambda step: {"type": REDUCING[step.type]}),
    "added twice": add_twice,
    "receive turned into a copy": at_step({"r"}, lambda step: {"type": "cpy", "src": step.src or step.dst}),
    "input overwritten": overwrite_input,
    "unwritten scratch read": read_unwritten_scratch,
    "buffer too small": shrink_output,
    "neither in place nor out of place": lambda program: replace(program, inplace=False, outofplace=False),
    "chunks that do not fit": lambda program: replace(program, chunks_per_loop=program.chunks_per_loop + 1),
}
