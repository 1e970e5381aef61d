"""Classes of objects, floors, and the least memory."""

from __future__ import annotations

import itertools
import random

import pytest

from planner.swap.arrays import arrays_of
from planner.swap.layout import (
    Pool,
    class_of_tensor,
    floor_ops,
    floors,
    laid_out,
    least_bytes,
    least_pool,
    needs,
    object_bytes,
    pool_bytes,
    sizes,
)
from planner.swap.two_pass import plan_once
from tests.planner.swap import cases
from tests.planner.swap.plans import random_order


def all_classes(count: int) -> list[tuple[int, ...]]:
    return [
        (1, *(1 + sum(steps[: at + 1]) for at in range(count - 1)))
        for steps in itertools.product((0, 1), repeat=count - 1)
    ]


def test_an_object_is_as_large_as_the_largest_size_of_its_class():
    pool = Pool((1, 1, 2, 2), (4, 1))
    assert object_bytes((1, 2, 3, 4), pool.classes) == (2, 4)
    assert pool_bytes((1, 2, 3, 4), pool) == 12
    assert [(part.object_bytes, part.count, part.address) for part in laid_out((1, 2, 3, 4), pool)] == [
        (2, 4, 0),
        (4, 1, 8),
    ]


def test_figure_4_1_needs_three_and_one():
    """O2: 3 x 1 + 1 x 2 = 5, with one class 3 x 2 = 6."""
    problem = cases.figure_4_1()
    arrays = arrays_of(problem)
    assert sizes(problem) == (1, 2)
    assert (floors(needs(arrays), (1, 2)), floors(needs(arrays), (1, 1))) == ((3, 1), (3,))
    assert (least_pool(problem), least_bytes(problem)) == (Pool((1, 2), (3, 1)), 5)
    assert [problem.ops[op].id for op in floor_ops(needs(arrays), (1, 2))] == ["Conv1", "Conv2"]


def test_tensors_of_no_bytes_are_in_no_class():
    tensors = [cases.parameter("W", 4), cases.activation("A", 0)]
    arrays = arrays_of(cases.built(4, tensors, [("o", "W", "A")]))
    assert class_of_tensor(arrays, Pool((1,), (1,))).tolist() == [0, -1]
    assert least_bytes(arrays) == 4


@pytest.mark.parametrize("seed", range(40))
def test_the_least_memory_is_that_of_the_best_of_all_class_maps(seed):
    rng = random.Random(seed)
    problem = cases.random_problem(rng)
    arrays = arrays_of(problem)
    needed = needs(arrays)
    pools = [Pool(c, floors(needed, c)) for c in all_classes(len(sizes(problem)))]
    assert least_bytes(problem) == min(pool_bytes(arrays.sizes, pool) for pool in pools)
    best = least_pool(problem)
    assert pool_bytes(arrays.sizes, best) == least_bytes(problem)
    for pool in pools:
        assert plan_once(arrays, random_order(rng, problem), pool) is not None
        for q, count in enumerate(pool.counts):
            if count > 1:
                less = Pool(pool.classes, (*pool.counts[:q], count - 1, *pool.counts[q + 1 :]))
                assert plan_once(arrays, random_order(rng, problem), less) is None
