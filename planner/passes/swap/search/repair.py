"""Making children of the crossover valid again: classes of sizes, objects per class, memory (SwapAdvisor, section 4.4).

Sizes are the distinct tensor sizes, ascending; `classes` is CLS, the class of each, from 1; `counts` is CNT.
"""

from __future__ import annotations

import numpy as np

from treadle.planner.passes.swap.arrays import Ints


def repaired_classes(classes: Ints) -> Ints:
    """The least element-wise increase after which CLS starts with 1 and each next value is equal or one more:
    x_i = max(max_{j<=i} c_j, max_{j>i} (c_j - (j - i)))."""
    places = np.arange(len(classes))
    before = np.maximum.accumulate(classes)
    after = np.maximum.accumulate((classes - places)[::-1])[::-1] + places
    return np.maximum(before, after)


def renumbered(classes: Ints) -> Ints:
    """A free CLS with its classes numbered from 1 in the order of their first sizes."""
    _, first, inverse = np.unique(classes, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(1, len(first) + 1)
    return rank[inverse]


def extended(classes: Ints, counts: Ints) -> Ints:
    """CNT_EXT: for each size the number of objects of its class."""
    return counts[classes - 1]


def averaged(extension: Ints, classes: Ints) -> Ints:
    """CNT from CNT_EXT: its mean over the sizes of each class, halves rounded up."""
    number = np.bincount(classes - 1)
    total = np.zeros(len(number), np.int64)
    np.add.at(total, classes - 1, extension)
    return (2 * total + number) // (2 * number)


def object_bytes(classes: Ints, sizes: Ints) -> Ints:
    """Bytes of an object of each class: the largest of its sizes."""
    largest = np.zeros(int(classes.max(initial=0)), np.int64)
    np.maximum.at(largest, classes - 1, sizes)
    return largest


def repaired_memory(counts: Ints, objects: Ints, floors: Ints, memory: int) -> Ints | None:
    """`counts` with the same number of bytes taken from every class until all objects fit into `memory` bytes.

    An excess of X bytes over K classes makes CNT[q] - (X / K) / objects[q], rounded down. No class goes below its
    floor: what is left over is spread over the others. None where even the floors do not fit.
    """
    counts = np.maximum(counts, floors)
    while (excess := int((counts * objects).sum()) - memory) > 0:
        giving = counts > floors
        number = int(giving.sum())
        if not number:
            return None
        less = (counts * number * objects - excess) // (number * objects)
        counts = np.where(giving, np.maximum(less, floors), counts)
    return counts


def filled(counts: Ints, objects: Ints, most: Ints, memory: int) -> Ints:
    """`counts` with the remaining memory given to one class after another, largest objects first, up to `most`
    objects."""
    counts = counts.copy()
    left = memory - int((counts * objects).sum())
    for q in np.argsort(-objects, kind="stable"):
        more = max(0, min(left // int(objects[q]), int(most[q] - counts[q])))
        counts[q] += more
        left -= more * int(objects[q])
    return counts
