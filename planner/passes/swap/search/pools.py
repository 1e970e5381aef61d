"""Pools that are planted into the search: for an order, few classes that waste little on its live tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from treadle.planner.passes.swap.arrays import Arrays, Ints
from treadle.planner.passes.swap.search.repair import object_bytes

CLASS_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of classes that are tried, in addition to one class for each size."""
MOMENTS = 20_000
"""Moments of an order at which live tensors are counted, at most."""


def planted_pools(arrays: Arrays, order: Ints, memory: int) -> Iterator[tuple[Ints, Ints]]:
    """(CLS, CNT) for each number of classes, in proportion to the most, to the mean and to the peak's live tensors; the
    counts are not repaired. Where the most of each class fits into `memory` nothing needs to be copied."""
    number = len(arrays.sizes)
    if not number:
        return
    live = live_counts(arrays, order)
    cuts = best_cuts(live, arrays.sizes, max(CLASS_COUNTS))
    for classes in [cuts[k] for k in CLASS_COUNTS if k < len(cuts)] + [np.arange(1, number + 1)] * (
        number > max(CLASS_COUNTS)
    ):
        objects = object_bytes(classes, arrays.sizes)
        held = np.stack([live[:, classes == q].sum(axis=1) for q in range(1, int(classes.max()) + 1)], axis=1)
        most = held.max(axis=0)
        if int((most * objects).sum()) <= memory:
            yield classes, most
            continue
        peak = held[int((held * objects).sum(axis=1).argmax())]
        for wanted in (most, held.mean(axis=0), peak):
            share = memory / max(1, float((wanted * objects).sum()))
            yield classes, np.asarray(wanted * share, np.int64)


def live_counts(arrays: Arrays, order: Ints) -> Ints:
    """[moments, sizes]: how many tensors of each size are live; several operators in a row are one moment where there
    are many of them."""
    moments, first, last = _lives(arrays, order)
    change = np.zeros((moments + 1, len(arrays.sizes)), np.int64)
    used = (last >= 0) & (arrays.size >= 0)
    np.add.at(change, (first[used], arrays.size[used]), 1)
    np.add.at(change, (last[used] + 1, arrays.size[used]), -1)
    return np.asarray(np.cumsum(change, axis=0)[:-1], np.int64)


def live_bytes(arrays: Arrays, order: Ints) -> Ints:
    """[moments]: bytes of the tensors that are live, at the moments of `live_counts`."""
    moments, first, last = _lives(arrays, order)
    change = np.zeros(moments + 1, np.int64)
    used = last >= 0
    np.add.at(change, first[used], arrays.bytes[used])
    np.add.at(change, last[used] + 1, -arrays.bytes[used])
    return np.asarray(np.cumsum(change)[:-1], np.int64)


def _lives(arrays: Arrays, order: Ints) -> tuple[int, Ints, Ints]:
    """The number of moments; per tensor the first and last at which it is live, -1 as last where it is unused. A tensor
    lives from its first to its last use, a kept one to the end, a persistent one always."""
    n = len(order)
    moments = min(n, MOMENTS)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n) * moments // n
    at = np.repeat(place, np.diff(arrays.use_ptr))
    first = np.full(len(arrays.bytes), moments, np.int64)
    last = np.full(len(arrays.bytes), -1, np.int64)
    np.minimum.at(first, arrays.use, at)
    np.maximum.at(last, arrays.use, at)
    first[arrays.persistent & (last >= 0)] = 0
    last[arrays.kept & (last >= 0)] = moments - 1
    return moments, first, last


def best_cuts(live: Ints, sizes: Ints, most: int) -> list[Ints]:
    """`cuts[k]` is the CLS of k classes, up to `most`, whose objects for the most live tensors of each class have the
    fewest bytes; `cuts[0]` is empty.

    A shortest path through the sizes: the class of sizes i to j costs sizes[j] * max over moments of those live.
    """
    number = len(sizes)
    upto = np.concatenate((np.zeros((len(live), 1), np.int64), np.cumsum(live, axis=1)), axis=1)
    cost = np.full((number + 1, number + 1), np.inf)
    for end in range(1, number + 1):
        cost[:end, end] = (upto[:, end : end + 1] - upto[:, :end]).max(axis=0) * sizes[end - 1]
    best = np.concatenate(([0.0], np.full(number, np.inf)))
    cuts, starts = [np.zeros(0, np.int64)], []
    for k in range(1, min(number, most) + 1):
        total = best[:, None] + cost
        starts.append(total.argmin(axis=0))
        best = total.min(axis=0)
        classes, end = np.zeros(number, np.int64), number
        for q in range(k, 0, -1):
            begin = int(starts[q - 1][end])
            classes[begin:end] = q
            end = begin
        cuts.append(classes)
    return cuts
