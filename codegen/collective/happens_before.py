"""Which accesses of a program nothing orders: happens-before over threadblocks, dependences and messages.

One step happens before another when a path of program order, dependences and messages (send to receive) leads to it.
Room in a FIFO orders nothing: how deep it is differs between runtimes. The question is asked for many pairs at once:
a walk along one possible sequence carries, for each threadblock, the set of steps in its past as bits of an integer, a
few thousand steps at a time, so that neither time nor memory grow with the square of the threadblocks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from treadle.codegen.collective import order
from treadle.codegen.collective.program import RECEIVING, SENDING, CollectiveProgram, Connection, Place

BATCH = 4096
"""Earlier steps whose bits are carried in one walk."""


def unordered(program: CollectiveProgram, sequence: Sequence[Place], pairs: Sequence[tuple[Place, Place]]) -> list[int]:
    """Indices of the (earlier, later) pairs, in terms of `sequence`, whose first step does not happen before the
    second. O(steps * distinct earlier steps / 64)."""
    if not pairs:
        return []
    position = {place: number for number, place in enumerate(sequence)}
    asked: dict[Place, list[tuple[Place, int]]] = defaultdict(list)
    for number, (earlier, later) in enumerate(pairs):
        asked[earlier].append((later, number))
    events = sorted(asked, key=position.__getitem__)
    found: list[int] = []
    for first in range(0, len(events), BATCH):
        found += _walk(program, sequence, position, {place: asked[place] for place in events[first : first + BATCH]})
    return sorted(found)


def _walk(
    program: CollectiveProgram,
    sequence: Sequence[Place],
    position: dict[Place, int],
    asked: dict[Place, list[tuple[Place, int]]],
) -> list[int]:
    bits = {place: 1 << number for number, place in enumerate(asked)}
    questions: dict[Place, list[tuple[int, int]]] = defaultdict(list)
    for earlier, answers in asked.items():
        for later, number in answers:
            questions[later].append((bits[earlier], number))
    start = min(position[place] for place in asked)
    end = max(position[place] for place in questions) + 1
    blocks = {(rank, index): (block.steps, *order.fifos_of(rank, block)) for rank, index, block in program.blocks()}
    past: dict[tuple[int, int], int] = {}
    passed: dict[Place, int] = {}
    flight: dict[Connection, deque[int]] = defaultdict(deque)
    found = []
    for place in sequence[:end]:
        rank, index, at = place
        steps, into, out = blocks[rank, index]
        step = steps[at]
        received = into if step.type in RECEIVING else None
        sent = out if step.type in SENDING else None
        if position[place] < start:  # nothing is in any past yet
            if received is not None:
                flight[received].popleft()
            if sent is not None:
                flight[sent].append(0)
            continue
        before = past.get((rank, index), 0)
        if step.depends is not None:
            before |= passed.get(Place(rank, *step.depends), 0)
        if received is not None:
            before |= flight[received].popleft()
        found += [number for bit, number in questions.get(place, ()) if not before & bit]
        before |= bits.get(place, 0)
        past[rank, index] = before
        if step.awaited and before:
            passed[place] = before
        if sent is not None:
            flight[sent].append(before)
    return found
