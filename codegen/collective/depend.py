"""Which steps of a rank must wait for which others, and which of these waits are redundant.

A read waits for the last write of each of its chunks; a write for the reads since, or for the last write if there are
none (TACCL, section 5.6.1). Waits that program order, other waits and messages imply are left out: a transitive
reduction under happens-before, computed with vector clocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from treadle.codegen.collective.placement import Operand
from treadle.codegen.collective.unplaced import UnplacedStep, chunks

MAX_CLOCK_CELLS = 2**27
"""Steps times threadblocks up to which messages count as well; above, clocks stay within their rank."""

Clock = np.ndarray[tuple[int], np.dtype[np.int32]]


def hazards(steps: Sequence[UnplacedStep]) -> list[list[int]]:
    """For each step the places in `steps` of earlier ones of its rank that it must follow, in order."""
    written: dict[tuple[int, Operand], int] = {}
    read: dict[tuple[int, Operand], list[int]] = {}
    result: list[list[int]] = []
    for place, step in enumerate(steps):
        needed: set[int] = set()
        rank, size = step.rank, step.size
        reads = [(rank, chunk) for chunk in chunks(step.reads, size)]
        writes = [(rank, chunk) for chunk in chunks(step.writes, size)]
        for address in reads:
            if address in written:
                needed.add(written[address])
        for address in writes:
            if readers := read.get(address):
                needed.update(readers)
            elif address in written:
                needed.add(written[address])
        for address in reads:
            read.setdefault(address, []).append(place)
        for address in writes:
            written[address] = place
            read.pop(address, None)
        result.append(sorted(needed))
    return result


def waits(
    steps: Sequence[UnplacedStep], before: Sequence[Sequence[int]], blocks: Sequence[Hashable], *, fenced: bool = True
) -> list[list[int]]:
    """For each step the places of those it must wait for explicitly; `before` are their hazards, `blocks` the
    threadblock of each step.

    `steps` must stand in an order in which they can run. Every step waits at most once per threadblock. With
    `fenced` a message implies that everything before it is done, as with protocol Simple; the flags of LL and LL128
    cover only the data that they come with.
    """
    needed = [_foreign(place, places, blocks) for place, places in enumerate(before)]
    watched: dict[Hashable, int] = {}
    for places in needed:
        for place in places:
            watched.setdefault(blocks[place], len(watched))
    if not watched:
        return needed
    across = fenced and len(steps) * len(watched) <= MAX_CLOCK_CELLS
    if not across:
        watched = _per_rank(steps, needed, blocks)
    return _reduced(steps, blocks, needed, watched, across)


def _foreign(place: int, places: Sequence[int], blocks: Sequence[Hashable]) -> list[int]:
    """The last needed place in each other threadblock, latest first."""
    last = {blocks[other]: other for other in places if blocks[other] != blocks[place]}
    return sorted(last.values(), reverse=True)


def _per_rank(
    steps: Sequence[UnplacedStep], needed: Sequence[Sequence[int]], blocks: Sequence[Hashable]
) -> dict[Hashable, int]:
    """Clock cells that are unique within each rank only."""
    cells: dict[Hashable, int] = {}
    count: dict[int, int] = defaultdict(int)
    for places in needed:
        for place in places:
            if blocks[place] not in cells:
                rank = steps[place].rank
                cells[blocks[place]] = count[rank]
                count[rank] += 1
    return cells


def _reduced(
    steps: Sequence[UnplacedStep],
    blocks: Sequence[Hashable],
    needed: Sequence[Sequence[int]],
    watched: dict[Hashable, int],
    across: bool,
) -> list[list[int]]:
    """Follow the clocks. `clock[b]` is how many steps of watched threadblock b are known to be done; the clock right
    after a step is kept until its last use."""
    place_of = {id(step): place for place, step in enumerate(steps)} if across else {}
    senders = [-1 if step.message is None else place_of.get(id(step.message), -1) for step in steps]
    users = [0] * len(steps)
    for places, sender in zip(needed, senders, strict=True):
        for place in places:
            users[place] += 1
        if sender >= 0:
            users[sender] += 1
    zero = np.zeros(max(watched.values()) + 1, dtype=np.int32)
    clocks: dict[Hashable, Clock] = {}
    passed: dict[Hashable, int] = defaultdict(int)
    position = [0] * len(steps)
    kept: dict[int, Clock] = {}
    result: list[list[int]] = []

    def take(place: int) -> Clock:
        users[place] -= 1
        return kept[place] if users[place] else kept.pop(place)

    for place, block in enumerate(blocks):
        clock = clocks.get(block, zero)
        if senders[place] >= 0:
            clock = np.maximum(clock, take(senders[place]))
        chosen = []
        for other in needed[place]:
            theirs = take(other)
            if clock[watched[blocks[other]]] <= position[other]:
                chosen.append(other)
                clock = np.maximum(clock, theirs)
        result.append(chosen)
        position[place] = passed[block]
        passed[block] += 1
        cell = watched.get(block)
        if cell is not None:
            clock = clock.copy()
            clock[cell] = passed[block]
        clocks[block] = clock
        if users[place]:
            kept[place] = clock
    return result
