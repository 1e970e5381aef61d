"""Memory as classes of objects of equal size (SwapAdvisor, section 4.2), and the least memory of any order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treadle.planner.passes.swap.arrays import Arrays, Ints, Nodes, arrays_of, ints
from treadle.planner.passes.swap.decisions import PoolClass
from treadle.planner.passes.swap.problem import SwapProblem


class Pool(NamedTuple):
    """`classes` (CLS): the class of each distinct tensor size, ascending, from 1, each equal to the one before or one
    more. `counts` (CNT): objects of each class. A tensor takes a whole object, as large as the class's largest size."""

    classes: tuple[int, ...]
    counts: tuple[int, ...]


def object_bytes(distinct: tuple[int, ...] | Ints, classes: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes of an object of each class: the largest size in it."""
    largest = dict(zip(classes, map(int, distinct), strict=True))
    return tuple(largest[q] for q in sorted(largest))


def pool_bytes(distinct: tuple[int, ...] | Ints, pool: Pool) -> int:
    """Bytes of all objects."""
    return sum(size * count for size, count in zip(object_bytes(distinct, pool.classes), pool.counts, strict=True))


def laid_out(distinct: tuple[int, ...] | Ints, pool: Pool) -> tuple[PoolClass, ...]:
    """The classes with their addresses, in sequence; all counts are at least 1."""
    found, address = [], 0
    for size, count in zip(object_bytes(distinct, pool.classes), pool.counts, strict=True):
        found.append(PoolClass(object_bytes=size, count=count, address=address))
        address += size * count
    return tuple(found)


def needs(arrays: Arrays) -> Ints:
    """Per operator and size, in [operators, sizes], how many tensors of that size it reads or makes."""
    ops = len(arrays.time)
    op_of = np.repeat(np.arange(ops), np.diff(arrays.use_ptr))
    size = arrays.size[arrays.use]
    needed = np.zeros((ops, len(arrays.sizes)), np.int64)
    np.add.at(needed, (op_of[size >= 0], size[size >= 0]), 1)
    return needed


def floors(needed: Ints, classes: tuple[int, ...]) -> tuple[int, ...]:
    """The fewest objects of each class: the most of its tensors that one operator holds (at least 1). `needed` are
    `needs(arrays)`."""
    return tuple(by_class(needed, ints(classes)).max(axis=0, initial=1).tolist())


def floor_ops(needed: Ints, classes: tuple[int, ...]) -> tuple[int, ...]:
    """Per class the first operator that needs as many objects as the floor."""
    return tuple(by_class(needed, ints(classes)).argmax(axis=0).tolist())


def least_pool(problem: SwapProblem | Arrays) -> Pool:
    """The pool of the fewest bytes in which every order can run: sizes are cut into runs, each run costs its floor
    times its largest size, and the cheapest cut is a shortest path. Among equals the one with the fewest classes."""
    arrays = problem if isinstance(problem, Arrays) else arrays_of(problem)
    needed = np.unique(needs(arrays), axis=0)
    n = len(arrays.sizes)
    upto = np.concatenate([np.zeros((len(needed), 1), np.int64), np.cumsum(needed, axis=1)], axis=1)
    best: list[tuple[int, int, int]] = [(0, 0, 0)]  # bytes, classes, where the last class starts
    for end in range(1, n + 1):
        held = (upto[:, end : end + 1] - upto[:, :end]).max(axis=0, initial=1)
        size = int(arrays.sizes[end - 1])
        best.append(min((best[at][0] + int(held[at]) * size, best[at][1] + 1, at) for at in range(end)))
    classes = np.zeros(n, np.int64)
    end = n
    while end:
        classes[best[end][2] : end] = best[end][1]
        end = best[end][2]
    cut = tuple(classes.tolist())
    return Pool(cut, floors(needed, cut))


def class_of_tensor(arrays: Arrays, pool: Pool) -> Ints:
    """Per tensor its class from 0; -1 where it needs no place."""
    return np.append(ints(pool.classes) - 1, -1)[arrays.size]


def by_class(needed: Ints, classes: Ints) -> Ints:
    """`needed`, whose columns are sizes, with the columns of each class added up."""
    member = classes[:, None] == np.arange(1, classes.max(initial=0) + 1)
    return np.asarray(needed @ member.astype(np.int64), np.int64)


def trimmed(sizes: Ints, pool: Pool, nodes: Nodes) -> tuple[Pool, Nodes]:
    """The same plan without objects that it does not use; each class keeps at least one."""
    classes = laid_out(sizes, pool)
    starts = np.array([each.address for each in classes], np.int64)
    objects = np.array([each.object_bytes for each in classes], np.int64)
    fields = {name: getattr(nodes, name) for name in ("at", "initial_at", "final_at")}
    taken = np.unique(np.concatenate([*fields.values()]))
    of = np.searchsorted(starts, taken, side="right") - 1
    counts = np.maximum(1, np.bincount(of, minlength=len(classes)))
    less = Pool(pool.classes, tuple(map(int, counts)))
    first = np.concatenate(([0], np.cumsum(np.bincount(of, minlength=len(classes)))))[:-1]
    begin = np.array([each.address for each in laid_out(sizes, less)], np.int64)
    to = begin[of] + (np.arange(len(taken)) - first[of]) * objects[of]
    return less, nodes._replace(**{name: to[np.searchsorted(taken, at)] for name, at in fields.items()})
