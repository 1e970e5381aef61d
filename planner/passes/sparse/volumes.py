"""What a scheme moves and adds up: bytes, messages, rounds, units.

Bytes are those of the busiest participant: in each round those that it sends or receives, whichever is more.
"""

from __future__ import annotations

from typing import NamedTuple

from treadle.planner.passes.sparse.counts import GradientCounts
from treadle.planner.passes.sparse.problem import COUNT_BYTES, VALUE_BYTES, BlockCounts
from treadle.planner.passes.sparse.schemes import Format, Scheme

WORD_BITS, WORD_BYTES = 32, 4


class Volume(NamedTuple):
    """The busiest participant: bytes, messages one after the other, rounds, and units whose values it adds up."""

    bytes: int
    messages: int
    rounds: int
    added: int


def volume(scheme: Scheme, counts: GradientCounts) -> Volume:
    """The volume of one exchange. Schemes of blocks need counts of them."""
    match scheme.communication:
        case "point-to-point":
            return _point_to_point(scheme, counts)
        case "hierarchy":
            return _hierarchy(scheme, counts)
        case "ring":
            return _ring(scheme, counts)


def _point_to_point(scheme: Scheme, counts: GradientCounts) -> Volume:
    n, own = counts.machines, counts.union(1)
    rounds = 0 if n == 1 else 1
    if scheme.partition == "centralized":
        return Volume((n - 1) * counts.coo(own), 2 * (n - 1), rounds, n * own)
    pushed, fullest, part = counts.gradient.blocks, counts.fullest(scheme), counts.covered(scheme)
    push = _payload(scheme.push, scheme, counts, fullest[0], pushed.push if pushed else 0)
    pull = _payload(scheme.pull or "coo", scheme, counts, fullest[n - 1], pushed.pull if pushed else 0)
    ahead = 1 if scheme.push == "dense" else 2
    match scheme.push:
        case "dense":
            added = part
        case "blocks":
            added = min(_blocks(counts).push * _blocks(counts).size, part)
        case _:
            added = fullest[0]
    return Volume((n - 1) * (push + pull), 2 * ahead * (n - 1), 2 * rounds, n * added)


def _payload(form: Format, scheme: Scheme, counts: GradientCounts, units: int, blocks: int) -> int:
    """Bytes of one part with `units` non-zero units in `blocks` non-zero blocks."""
    part, value = counts.covered(scheme), VALUE_BYTES * counts.width
    match form:
        case "coo":
            return counts.coo(units)
        case "bitmap":
            return _bits(part) + value * units
        case "blocks":
            size = _blocks(counts).size
            return _bits(-(-part // size)) + value * min(blocks * size, part)
        case "dense":
            return value * part


def _bits(units: int) -> int:
    """Bytes of a bitmap, in whole words."""
    return WORD_BYTES * -(-units // WORD_BITS)


def _blocks(counts: GradientCounts) -> BlockCounts:
    if counts.gradient.blocks is None:
        raise ValueError(f"{counts.gradient.name} has no counts of blocks")
    return counts.gradient.blocks


def _hierarchy(scheme: Scheme, counts: GradientCounts) -> Volume:
    n, own, fold = counts.machines, counts.union(1), int(counts.folds)
    stages, incremental = counts.stages, scheme.aggregation == "incremental"
    if scheme.partition == "centralized":
        if incremental:
            moved = sum(counts.coo(counts.union(held)) for held in stages)
            added = sum(2 * counts.union(held) for held in stages) + fold * 2 * own
        else:
            moved, added = sum(stages) * counts.coo(own), n * own
        moved += fold * (counts.coo(own) + counts.coo(counts.union(n)))
        rounds = len(stages) + 2 * fold
        return Volume(moved, 2 * rounds, rounds, added)
    fullest, parts = counts.fullest(scheme), counts.core
    given = [parts >> (stage + 1) for stage in range(len(stages))]
    if incremental:
        moved = sum(counts.several(some, fullest, held) for some, held in zip(given, stages, strict=True))
        added = sum(
            2 * min(some * fullest[held - 1], counts.union(held)) for some, held in zip(given, stages, strict=True)
        )
        added += fold * 2 * own
    else:
        moved = sum(held * counts.several(some, fullest, 1) for some, held in zip(given, stages, strict=True))
        added = n * fullest[0]
    moved += sum(counts.several(1 << stage, fullest, n) for stage in range(len(stages)))
    moved += fold * (counts.several(parts, fullest, 1) + counts.several(parts, fullest, n))
    rounds = 2 * (len(stages) + fold)
    return Volume(moved, 2 * rounds, rounds, added)


def _ring(scheme: Scheme, counts: GradientCounts) -> Volume:
    n, own, incremental = counts.machines, counts.union(1), scheme.aggregation == "incremental"
    if scheme.partition == "centralized":
        if incremental:
            sums = sum(counts.gradient.unions[: n - 1])
            moved, added = counts.coo(0) * (n - 1) + counts.entry * sums, sums + (n - 1) * own
        else:
            moved, added = (n - 1) * counts.coo(own), n * own
        return Volume(moved, 2 * (n - 1), n - 1, added)
    fullest = counts.fullest(scheme)
    if incremental:
        sums = sum(fullest[: n - 1])
        moved, added = counts.coo(0) * (n - 1) + counts.entry * sums, sums + (n - 1) * fullest[0]
    else:
        # 1 to n - 1 parts of what one participant contributed, of which few enough are all as full as the fullest.
        most = min(n - 1, own // fullest[0]) if fullest[0] else 0
        units = fullest[0] * most * (most + 1) // 2 + own * (n - 1 - most)
        moved, added = COUNT_BYTES * n * (n - 1) // 2 + counts.entry * units, n * fullest[0]
    moved += (n - 1) * counts.coo(fullest[n - 1])
    return Volume(moved, 4 * (n - 1), 2 * (n - 1), added)
