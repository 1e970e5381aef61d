"""Sparse exchanges played with real index sets: what every participant sends and receives, message by message.

Counts of units are the most over all sets of participants, so that formulas over them are bounds of what is played.
Takes the rounds that the runtime executes, and shares nothing else with the planner but the hash function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from treadle.planner.passes.sparse.hashing import ranged
from treadle.planner.passes.sparse.rounds import SparseHop, exchange
from treadle.planner.passes.sparse.schemes import Scheme

Sets = Sequence[frozenset[int]]
"""Units that are not zero on each participant."""


class Played(NamedTuple):
    """Bytes of the busiest participant, added up over rounds, and its messages, those ahead of others too."""

    bytes: int
    messages: int
    rounds: int


@cache
def parts_of(units: int, parts: int, seed: int | None) -> tuple[tuple[int, ...], ...]:
    """The units of each part, ascending: even ranges without a seed, else hashed."""
    if seed is None:
        return tuple(tuple(range(part * units // parts, (part + 1) * units // parts)) for part in range(parts))
    owner = ranged(np.arange(units), seed, parts).tolist()
    return tuple(tuple(unit for unit in range(units) if owner[unit] == part) for part in range(parts))


def blocks_of(part: Sequence[int], held: frozenset[int], size: int) -> list[Sequence[int]]:
    """The blocks of a part that hold any of the units; the last of a part may be short."""
    whole = [part[at : at + size] for at in range(0, len(part), size)]
    return [block for block in whole if held.intersection(block)]


def played(scheme: Scheme, sets: Sets, units: int, width: int, seed: int, block: int) -> Played:
    """`scheme` with the index sets of all participants, in messages of the formats that it names."""
    n = len(sets)
    rounds = exchange(scheme, n)
    parts = parts_of(units, rounds.parts, seed if scheme.balance == "balanced" else None)

    def size(hop: SparseHop) -> int:
        part = parts[hop.part]
        held = frozenset(part).intersection(*[frozenset().union(*(sets[at] for at in hop.workers or range(n)))])
        form = scheme.push if hop.workers else scheme.pull or "coo"
        if form == "coo":
            return 4 + len(held) * (4 + 4 * width)
        if form == "dense":
            return 4 * width * len(part)
        if form == "bitmap":
            return words(len(part)) + 4 * width * len(held)
        carried = sum(map(len, blocks_of(part, held, block)))
        return words(-(-len(part) // block)) + 4 * width * carried

    total = messages = 0
    for hops in (*rounds.push, *rounds.pull):
        sent: Counter[int] = Counter()
        received: Counter[int] = Counter()
        for hop in hops:
            sent[hop.src] += size(hop)
            received[hop.dst] += size(hop)
        total += max(*sent.values(), *received.values())
        partners = Counter(src for src, _ in {(hop.src, hop.dst) for hop in hops})
        messages += max(partners.values()) * (1 if scheme.push == "dense" else 2)
    return Played(total, messages, len(rounds.push) + len(rounds.pull))


class PlayedCounts(NamedTuple):
    """Units of 1 to n participants: in all, in the fullest even range, in the fullest hashed part; blocks of one
    participant, and of all, in the fullest even range."""

    unions: tuple[int, ...]
    even: tuple[int, ...]
    hashed: tuple[int, ...]
    push: int
    pull: int


def most(sets: Sets, units: int, seed: int, block: int) -> PlayedCounts:
    """The most of each count over all sets of as many participants."""
    n = len(sets)
    unions: list[int] = []
    fullest: dict[int | None, list[int]] = {None: [], seed: []}
    for m in range(1, n + 1):
        sums = [frozenset().union(*chosen) for chosen in combinations(sets, m)]
        unions.append(max(map(len, sums)))
        for owner, found in fullest.items():
            parts = [frozenset(part) for part in parts_of(units, n, owner)]
            found.append(max(len(part & held) for part in parts for held in sums))
    ranges, everything = parts_of(units, n, None), frozenset().union(*sets)
    push = max(len(blocks_of(part, held, block)) for part in ranges for held in sets)
    pull = max(len(blocks_of(part, everything, block)) for part in ranges)
    return PlayedCounts(tuple(unions), tuple(fullest[None]), tuple(fullest[seed]), push, pull)


def words(bits: int) -> int:
    """Bytes of a bitmap in 32-bit words."""
    return 4 * -(-bits // 32)
