"""The bytes that participants send and receive in each round of a scheme, played for given sets of non-zero units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS, ranged
from treadle.planner.passes.sparse.problem import COUNT_BYTES, INDEX_BYTES, VALUE_BYTES
from treadle.planner.passes.sparse.rounds import exchange
from treadle.planner.passes.sparse.schemes import Format, Scheme
from treadle.planner.passes.sparse.volumes import WORD_BITS, WORD_BYTES

Indices = NDArray[np.int64]


class RoundTraffic(NamedTuple):
    """Bytes by participant."""

    sent: tuple[int, ...]
    received: tuple[int, ...]


def traffic(
    scheme: Scheme,
    sets: Sequence[NDArray[Any]],
    units: int,
    width: int,
    *,
    seed: int = DEFAULT_SEEDS[0],
    block: int = 1,
    part_of: NDArray[Any] | None = None,
) -> tuple[RoundTraffic, ...]:
    """The rounds of an exchange between as many participants as there are `sets`, each the ascending distinct units,
    from 0, that are not zero on one of them.

    seed: that of the hash function that deals units out to parts. block: units in a block. part_of [units]: the part of
    each unit, instead of hashed or even ones.
    """
    n = len(sets)
    rounds = exchange(scheme, n)
    if part_of is None:
        part_of = _parts(scheme, units, rounds.parts, seed)
    layout = _Layout.of(part_of.astype(np.int64), rounds.parts, width, block)

    @cache
    def payloads(workers: tuple[int, ...], form: Format) -> tuple[int, ...]:
        """Bytes of the sum of what workers contributed, by part."""
        return tuple(layout.payloads(reduce(np.union1d, (sets[worker] for worker in workers)), form).tolist())

    everyone, played = tuple(range(n)), []
    for hops, form in [*((hops, scheme.push) for hops in rounds.push), *((hops, scheme.pull) for hops in rounds.pull)]:
        sent, received = [0] * n, [0] * n
        for hop in hops:
            moved = payloads(tuple(sorted(hop.workers)) or everyone, form or scheme.push)[hop.part]
            sent[hop.src] += moved
            received[hop.dst] += moved
        played.append(RoundTraffic(tuple(sent), tuple(received)))
    return tuple(played)


def busiest(played: Iterable[RoundTraffic]) -> int:
    """Bytes of the busiest participant of each round, sent or received, added up over rounds."""
    return sum(max(*sent, *received) for sent, received in played)


def _parts(scheme: Scheme, units: int, parts: int, seed: int) -> Indices:
    if scheme.balance == "balanced":
        return ranged(np.arange(units), seed, parts)
    starts = np.arange(1, parts) * units // parts
    return np.searchsorted(starts, np.arange(units), side="right")


class _Layout(NamedTuple):
    """Where units lie: the part of each [units], its place among the units of that part, and the size of each part."""

    part: Indices
    place: Indices
    sizes: Indices
    width: int
    block: int

    @classmethod
    def of(cls, part: Indices, parts: int, width: int, block: int) -> _Layout:
        sizes = np.bincount(part, minlength=parts)
        order = np.argsort(part, kind="stable")
        place = np.empty_like(part)
        place[order] = np.arange(len(part)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return cls(part, place, sizes, width, block)

    def payloads(self, indices: NDArray[Any], form: Format) -> Indices:
        """Bytes of what is not zero at `indices`, by part."""
        value = VALUE_BYTES * self.width
        match form:
            case "coo":
                return COUNT_BYTES + self._count(indices) * (INDEX_BYTES + value)
            case "bitmap":
                return _bits(self.sizes) + self._count(indices) * value
            case "blocks":
                return _bits(-(-self.sizes // self.block)) + self._in_blocks(indices) * value
            case "dense":
                return self.sizes * value

    def _count(self, indices: NDArray[Any]) -> Indices:
        return np.bincount(self.part[indices], minlength=len(self.sizes))

    def _in_blocks(self, indices: NDArray[Any]) -> Indices:
        """Units in blocks of which any is not zero, by part. The last block of a part may be short."""
        most = int(self.sizes.max(initial=0)) // self.block + 1
        blocks = np.unique(self.part[indices] * most + self.place[indices] // self.block)
        part, first = blocks // most, blocks % most * self.block
        lengths = np.minimum(self.block, self.sizes[part] - first)
        return np.bincount(part, weights=lengths, minlength=len(self.sizes)).astype(np.int64)


def _bits(units: Indices) -> Indices:
    """Bytes of bitmaps, in whole words."""
    return WORD_BYTES * -(-units // WORD_BITS)
