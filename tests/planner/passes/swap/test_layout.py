"""Classes of objects, floors, and the least memory."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from msgspec import structs

from tests.planner.passes.swap import cases
from tests.planner.passes.swap.plans import decide, random_order, random_pool
from treadle.planner.passes.swap.arrays import arrays_of
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.evaluate import decisions
from treadle.planner.passes.swap.layout import (
    Pool,
    class_of_tensor,
    floor_ops,
    floors,
    laid_out,
    least_pool,
    needs,
    object_bytes,
    pool_bytes,
    trimmed,
)
from treadle.planner.passes.swap.timeline_of import footprints
from treadle.planner.passes.swap.two_pass import FAITHFUL, plan_once, plan_pool


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
    assert problem.object_sizes == (1, 2)
    assert (floors(needs(arrays), (1, 2)), floors(needs(arrays), (1, 1))) == ((3, 1), (3,))
    assert least_pool(problem) == Pool((1, 2), (3, 1))
    assert pool_bytes(arrays.sizes, least_pool(problem)) == 5
    assert [problem.ops[op].id for op in floor_ops(needs(arrays), (1, 2))] == ["Conv1", "Conv2"]


def test_tensors_of_no_bytes_are_in_no_class():
    tensors = [cases.parameter("W", 4), cases.activation("A", 0)]
    arrays = arrays_of(cases.built(4, tensors, [("o", "W", "A")]))
    assert class_of_tensor(arrays, Pool((1,), (1,))).tolist() == [0, -1]
    assert pool_bytes(arrays.sizes, least_pool(arrays)) == 4


@pytest.mark.parametrize("seed", range(40))
def test_the_least_memory_is_that_of_the_best_of_all_class_maps(seed):
    rng = random.Random(seed)
    problem = cases.random_problem(rng)
    arrays = arrays_of(problem)
    needed = needs(arrays)
    pools = [Pool(c, floors(needed, c)) for c in all_classes(len(problem.object_sizes))]
    least = pool_bytes(arrays.sizes, least_pool(problem))
    assert least == min(pool_bytes(arrays.sizes, pool) for pool in pools)
    for pool in pools:
        assert plan_once(arrays, random_order(rng, problem), pool) is not None
        for q, count in enumerate(pool.counts):
            if count > 1:
                less = Pool(pool.classes, (*pool.counts[:q], count - 1, *pool.counts[q + 1 :]))
                assert plan_once(arrays, random_order(rng, problem), less) is None


@pytest.mark.parametrize("seed", range(12))
def test_objects_that_hold_nothing_are_left_out(seed):
    rng = random.Random(seed)
    problem = cases.random_problem(rng)
    problem = structs.replace(problem, machine=structs.replace(problem.machine, memory_bytes=2**20))
    arrays, order, pool = arrays_of(problem), random_order(rng, problem), random_pool(rng, problem)
    nodes = plan_pool(arrays, order, pool, FAITHFUL)
    assert nodes is not None
    before = decisions(problem, arrays, order, nodes, pool)
    roomy = Pool(pool.classes, tuple(100 * count for count in pool.counts))
    spread = nodes._replace(
        **{name: _spread(getattr(nodes, name), arrays, pool, roomy) for name in ("at", "initial_at", "final_at")}
    )
    less, packed = trimmed(arrays.sizes, roomy, spread)
    after = decisions(problem, arrays, order, packed, less)
    held = {at for node in after.nodes for at in node.at} | {each.at for each in (*after.initial, *after.final)}
    assert check(after) == []
    assert after.time_ns == before.time_ns
    for each in after.pool:
        objects = {each.address + number * each.object_bytes for number in range(each.count)}
        assert objects <= held or each.count == 1


def _spread(at, arrays, pool, roomy):
    """The same places with objects far apart: number n becomes number 100 n + 7 of its class."""
    old, new = laid_out(arrays.sizes, pool), laid_out(arrays.sizes, roomy)
    found = []
    for address in at.tolist():
        q = max(q for q, each in enumerate(old) if each.address <= address)
        number = (address - old[q].address) // old[q].object_bytes
        found.append(new[q].address + (100 * number + 7) * new[q].object_bytes)
    return np.array(found, np.int64)


@pytest.mark.parametrize("seed", range(20))
def test_objects_are_whole_granules_of_the_allocator(seed):
    """Tensors of 1 to 8 bytes in granules of 4 take objects of 4 and 8 bytes, side by side: what the checker accepts
    lies on the allocator's addresses, and it accepts no other."""
    rng = random.Random(seed)
    problem = cases.random_problem(rng)
    machine = structs.replace(problem.machine, memory_bytes=2**20)
    problem = structs.replace(problem, machine=machine, granularity=4)
    assert set(problem.object_sizes) <= {4, 8}
    plan = decide(problem, random_order(rng, problem), random_pool(rng, problem))
    assert check(plan) == []
    assert all(part.object_bytes % 4 == part.address % 4 == 0 for part in plan.pool)
    places = [at for node in plan.nodes for at in node.at] + [each.at for each in (*plan.initial, *plan.final)]
    assert all(at % 4 == 0 for at in places)
    exact = structs.replace(plan, problem=structs.replace(problem, granularity=8))
    if problem.object_sizes == exact.problem.object_sizes:
        return
    assert check(exact), "objects of 4 bytes where the allocator makes none"


def test_an_object_between_the_granules_is_refused():
    problem = structs.replace(cases.figure_4_1(40), granularity=4)
    plan = decide(problem, range(len(problem.ops)), least_pool(problem))
    assert check(plan) == []
    moved = structs.replace(plan.pool[0], address=plan.pool[0].address + 2)
    found = check(structs.replace(plan, pool=(moved, *plan.pool[1:])))
    assert found[0] == "pool: address of 2, expected a multiple of the allocator's 4 bytes"


def test_what_lies_on_the_device_counts_as_whole_granules():
    problem = structs.replace(cases.figure_4_1(40), granularity=4)
    plan = decide(problem, range(len(problem.ops)), least_pool(problem))
    assert footprints(plan) == [4 * bool(tensor.bytes) for tensor in problem.tensors]
    assert pool_bytes(problem.object_sizes, least_pool(problem)) == plan.pool[0].count * 4
