"""From recorded index sets to how sparse gradients are: densities of sums, overlap, and how evenly units lie.

What is measured follows "Zen: Near-Optimal Sparse Tensor Synchronization for Distributed DNN Training", section 3.1.

Participants up to the number of ranks are ranks of one step; beyond that, several steps of all ranks stand for as many
participants. Mean counts of sums are exact, over all choices of participants: with c(u) of N sets holding unit u, the
sum of m sets has on average sum over u of 1 - C(N - c(u), m) / C(N, m) units. The most, the fullest ranges and blocks
are those of sampled choices; a fullest range is stated as its share of the sampled sums times the exact mean.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.planner.documents.scalars import many
from treadle.planner.documents.sparsity import (
    VERSION,
    FullestBlocks,
    FullestPart,
    SharedUnits,
    Sparsity,
    TensorSparsity,
    UnionCount,
    UnitPlaces,
)
from treadle.probe.index_sets import RecordedSets, RecordedTensor

Units = NDArray[Any]
"""Distinct units, ascending."""
BLOCK_ELEMENTS = 256
"""Elements of a block, as in OmniReduce; of wider rows a block is a row."""
MOST_PARTS = 128
SAMPLES, BLOCK_SAMPLES = 16, 2
"""Sampled choices of participants."""
PAIRS, PAIR_BINS = 128, 20
PLACES, PLACED_SETS = 64, 3
"""Ranges in which units are counted, and single sets for which they are."""
_SEED = 17
_PIECE = 1 << 24
"""Units that are numbered at a time, by a table of all of them."""


def sparsity_of(recorded: RecordedSets) -> Sparsity:
    """The sparsity that recorded index sets show."""
    ranks, steps = recorded.ranks, recorded.steps
    sources = dict(recorded.sources)
    if steps > 1:
        sources["tensors.unions"] = (
            f"participants beyond {many(ranks, 'rank')} are sets of several of {many(steps, 'step')}"
        )
    return Sparsity(
        version=VERSION,
        name=recorded.name,
        ranks=ranks,
        steps=steps,
        tensors=tuple(map(tensor_sparsity, recorded.tensors)),
        sources=sources,
    )


def tensor_sparsity(tensor: RecordedTensor) -> TensorSparsity:
    """The statistics of one tensor."""
    known, sets = _numbered(tensor)
    steps, ranks = len(sets), len(sets[0])
    entries = [len(each) for step in tensor.sets for each in step]
    means = mean_unions(sets, len(known))
    sums = {m: [union(each, len(known)) for each in _choices(sets, m)] for m in means}
    # A sum of more participants is never smaller.
    most = np.maximum.accumulate([max(means[m], *map(len, sums[m])) for m in means]).tolist()
    return TensorSparsity(
        name=tensor.name,
        form=tensor.form,
        unit=tensor.unit,
        units=tensor.units,
        width=tensor.width,
        sets=steps * ranks,
        occurrences=_rounded(sum(entries), len(entries)),
        unions=tuple(
            UnionCount(participants=m, mean=mean, most=top) for (m, mean), top in zip(means.items(), most, strict=True)
        ),
        shared=_shared(sets, len(known)),
        fullest=tuple(_fullest(means, sums, tensor.units, known)),
        blocks=tuple(_blocks(sums, tensor.units, known, max(1, BLOCK_ELEMENTS // tensor.width))),
        places=tuple(_places(sums, tensor.units, known)),
    )


def _numbered(tensor: RecordedTensor) -> tuple[Units, list[list[Units]]]:
    """The units that any set has, and the sets as places in them: distinct, ascending, int32."""
    flat = [_distinct(each.astype(np.int32)) for ranks in tensor.sets for each in ranks]
    bounds = np.arange(0, tensor.units + _PIECE, _PIECE)
    cuts = [np.searchsorted(each, bounds) for each in flat]
    seen, place = np.zeros(_PIECE, bool), np.empty(_PIECE, np.int32)
    known, before = [np.empty(0, np.int32)], 0
    for piece in np.flatnonzero(np.diff(cuts).any(axis=0)):
        start = np.int32(bounds[piece])
        parts = [each[cut[piece] : cut[piece + 1]] for each, cut in zip(flat, cuts, strict=True)]
        for part in parts:
            part -= start
            seen[part] = True
        found = np.flatnonzero(seen).astype(np.int32)
        seen[found] = False
        place[found] = np.arange(before, before + len(found), dtype=np.int32)
        for part in parts:
            part[:] = place[part]
        known.append(found + start)
        before += len(found)
    numbered = iter(flat)
    return np.concatenate(known), [[next(numbered) for _ in ranks] for ranks in tensor.sets]


def _distinct(numbers: Units) -> Units:
    """Sorted, each once; `numpy.unique` takes ten times as long."""
    found = np.sort(numbers)
    first = np.ones(len(found), bool)
    first[1:] = found[1:] != found[:-1]
    return found[first]


def union(sets: Sequence[Units], units: int) -> Units:
    """Units that any of the sets has."""
    if len(sets) == 1:
        return sets[0]
    seen = np.zeros(units, bool)
    for each in sets:
        seen[each] = True
    return np.flatnonzero(seen).astype(np.int32)


def mean_unions(sets: Sequence[Sequence[Units]], units: int) -> dict[int, int]:
    """Mean units in sums over 1, 2, 4, ... participants, up to all sets; `sets[step][rank]`."""
    steps, ranks = len(sets), len(sets[0])
    holders = [_holders(each, units) for each in sets]
    found = {m: _mean_union(holders, ranks, m) for m in _doubled(ranks)}
    if steps > 1:
        together = [_holders([union(each, units) for each in sets], units)]
        found |= {ranks * m: _mean_union(together, steps, m) for m in _doubled(steps) if m > 1}
    return found


def _doubled(last: int) -> list[int]:
    """1, 2, 4, ..., and the last one."""
    return [*(1 << power for power in range((last - 1).bit_length())), last] if last > 1 else [1]


def _holders(sets: Sequence[Units], units: int) -> list[int]:
    """How many units as many of the sets have as their place in the list says."""
    if len(sets) == 1:
        return [units - len(sets[0]), len(sets[0])]
    counts = np.zeros(units, np.min_scalar_type(len(sets)))
    for each in sets:
        counts[each] += 1
    return list(np.bincount(counts).tolist())


def _mean_union(holders: Sequence[Sequence[int]], of: int, m: int) -> int:
    """The mean, over groups of `of` sets and over all choices of m sets of one, of the units in their sum."""
    all_choices = comb(of, m)
    in_sums = sum(
        number * (all_choices - comb(of - holding, m)) for group in holders for holding, number in enumerate(group)
    )
    return _rounded(in_sums, all_choices * len(holders))


def _rounded(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


def _choices(sets: Sequence[Sequence[Units]], m: int) -> Iterator[list[Units]]:
    """Choices of m participants: all sets for one, otherwise up to SAMPLES random ones that share no set."""
    steps, ranks = len(sets), len(sets[0])
    if m == 1:
        yield from ([each] for step in sets for each in step)
        return
    drawn = random.Random(_SEED)
    order = drawn.sample(range(steps), steps)
    if m <= ranks:
        rows = [drawn.sample(sets[step], ranks) for step in order]
        cuts = [row[cut : cut + m] for row in rows for cut in range(0, ranks - m + 1, m)]
    else:
        together = m // ranks
        groups = [order[cut : cut + together] for cut in range(0, steps - together + 1, together)]
        cuts = [[each for step in group for each in sets[step]] for group in groups]
    yield from cuts[:SAMPLES]


def _shared(sets: Sequence[Sequence[Units]], units: int) -> SharedUnits | None:
    """Overlap of pairs: of ranks of one step, or of steps with a single rank each; random ones of many."""
    rows = sets if len(sets[0]) > 1 else [[each for step in sets for each in step]]
    pairs = [(one, other) for row in rows for place, one in enumerate(row) for other in row[:place]]
    pairs = [pair for pair in pairs if len(pair[0]) and len(pair[1])]
    if not pairs:
        return None
    if len(pairs) > PAIRS:
        pairs = random.Random(_SEED).sample(pairs, PAIRS)
    shares = np.empty(len(pairs))
    marked = np.zeros(units, bool)
    for place, (one, other) in enumerate(pairs):
        marked[one] = True
        shares[place] = np.count_nonzero(marked[other]) / min(len(one), len(other))
        marked[one] = False
    counts = np.bincount(np.minimum((shares * PAIR_BINS).astype(int), PAIR_BINS - 1), minlength=PAIR_BINS)
    mean, deviation = (round(float(each), 6) for each in (shares.mean(), shares.std()))
    return SharedUnits(mean=mean, deviation=deviation, counts=tuple(counts.tolist()))


def _starts(units: int, parts: int) -> Units:
    """Where each of the even ranges begins, and the end of the last one."""
    return np.array([part * units // parts for part in range(parts + 1)], np.int32)


def _in_ranges(found: Units, starts: Units) -> Units:
    """Units of each range; `starts` and the units are of one numbering."""
    return np.diff(np.searchsorted(found, starts))


def _parts(units: int) -> list[int]:
    return [1 << power for power in range(1, MOST_PARTS.bit_length()) if 1 << power <= units]


def _fullest(means: dict[int, int], sums: dict[int, list[Units]], units: int, known: Units) -> Iterator[FullestPart]:
    for parts in _parts(units):
        starts = np.searchsorted(known, _starts(units, parts)).astype(np.int32)
        for participants in (m for m in means if m <= parts):
            found = sums[participants]
            fullest, whole = sum(int(_in_ranges(each, starts).max()) for each in found), sum(map(len, found))
            mean = means[participants]
            most = min(mean, -(-units // parts))
            share = _rounded(fullest * mean, whole) if whole else 0
            yield FullestPart(parts=parts, participants=participants, mean=min(most, max(-(-mean // parts), share)))


def _blocks(sums: dict[int, list[Units]], units: int, known: Units, block: int) -> Iterator[FullestBlocks]:
    """Before sums, and in those of as many participants as there are parts, or of the next fewer."""
    wanted: dict[int, list[int]] = {}
    for parts in _parts(units):
        for participants in sorted({1, max(m for m in sums if m <= parts)}):
            wanted.setdefault(participants, []).append(parts)
    chosen = {m: [known[each] for each in _evenly(sums[m], BLOCK_SAMPLES)] for m in wanted}
    for participants, all_parts in wanted.items():
        for parts in all_parts:
            counts = [_fullest_blocks(each, units, parts, block) for each in chosen[participants]]
            mean = _rounded(sum(counts), len(counts))
            yield FullestBlocks(block=block, parts=parts, participants=participants, mean=mean)


def _evenly(items: Sequence[Units], most: int) -> list[Units]:
    """Up to `most` of the items, spread over all of them."""
    take = min(most, len(items))
    return [items[place * len(items) // take] for place in range(take)]


def _fullest_blocks(found: Units, units: int, parts: int, block: int) -> int:
    """Non-zero blocks of the fullest range; blocks begin where their range does."""
    starts = _starts(units, parts)
    edges = np.searchsorted(found, starts)
    blocks = (found - np.repeat(starts[:-1], np.diff(edges))) // np.int32(block)
    first = np.ones(len(found), bool)
    first[1:] = blocks[1:] != blocks[:-1]
    first[edges[:-1][edges[:-1] < len(found)]] = True
    return max(int(np.count_nonzero(first[begin:end])) for begin, end in pairwise(edges))


def _places(sums: dict[int, list[Units]], units: int, known: Units) -> Iterator[UnitPlaces]:
    """Places of the first sets, and of the sum of all."""
    starts = np.searchsorted(known, _starts(units, min(PLACES, units))).astype(np.int32)
    last = max(sums)
    chosen = [(1, each) for each in sums[1][:PLACED_SETS]] + ([(last, sums[last][0])] if last > 1 else [])
    for participants, found in chosen:
        yield UnitPlaces(participants=participants, counts=tuple(_in_ranges(found, starts).tolist()))
