"""Crossover of orders and pools: the examples of SwapAdvisor, and that every child of topological orders is one."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np

from treadle.planner.passes.swap.search.crossover import crossed_order, crossed_pool
from treadle.planner.passes.swap.search.repair import averaged, object_bytes, repaired_classes, repaired_memory


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_published_crossover_of_orders():
    """O5, operators counted from 0."""
    first, second = ints(0, 1, 2, 3, 4), ints(1, 2, 3, 0, 4)
    assert list(crossed_order(first, second, 3)) == [1, 2, 3, 0, 4]
    assert list(crossed_order(second, first, 3)) == [0, 1, 2, 3, 4]


def test_children_of_topological_orders_are_topological():
    """O5: edges 2->3->4->5 and 1->5."""
    edges = [(1, 2), (2, 3), (3, 4), (0, 4)]
    orders = {p for p in permutations(range(5)) if all(p.index(a) < p.index(b) for a, b in edges)}
    assert len(orders) == 4
    for first, second in product(orders, repeat=2):
        for cut in range(6):
            assert tuple(crossed_order(ints(*first), ints(*second), cut).tolist()) in orders


def test_published_crossover_of_pools():
    """O4: two children of a cut after two sizes, repaired to 12 MB."""
    sizes = ints(1, 2, 3, 4)
    one, two = (ints(1, 1, 1, 1), ints(4)), (ints(1, 2, 2, 2), ints(8, 1))
    found = []
    for first, second in ((one, two), (two, one)):
        joined, extension = crossed_pool(first, second, 2)
        classes = repaired_classes(joined)
        counts = averaged(extension, classes)
        objects = object_bytes(classes, sizes)
        fit = repaired_memory(counts, objects, np.ones(len(counts), np.int64), 12)
        found.append([list(map(int, row)) for row in (joined, classes, extension, counts, objects, fit)])
    assert found == [
        [[1, 2, 1, 1], [1, 2, 2, 2], [8, 1, 4, 4], [8, 3], [1, 4], [4, 2]],
        [[1, 1, 2, 2], [1, 1, 2, 2], [4, 4, 1, 1], [4, 1], [2, 4], [4, 1]],
    ]
