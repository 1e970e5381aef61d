"""Local search: never worse, legal moves, the same plan from the same seed."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import pytest

from tests.planner.passes.swap import cases
from treadle.planner.passes.swap.arrays import arrays_of
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.evaluate import decisions
from treadle.planner.passes.swap.improve import Improved, improve, moved, toggled, traded
from treadle.planner.passes.swap.layout import Pool, floors, least_pool, needs, pool_bytes
from treadle.planner.passes.swap.problem import SwapProblem
from treadle.planner.passes.swap.two_pass import FAITHFUL

Allocator = Literal["pool", "bytes", "offset"]


def run(problem: SwapProblem, allocator: Allocator, evaluations: int, seed: int = 0) -> Improved | None:
    arrays = arrays_of(problem)
    pool = least_pool(arrays) if allocator == "pool" else None
    order = np.arange(len(problem.ops))
    return improve(arrays, problem.arena_bytes, allocator, order, pool, evaluations=evaluations, seed=seed)


@pytest.mark.parametrize("allocator", ["pool", "bytes", "offset"])
def test_plans_are_safe_and_never_slower_than_the_first(allocator: Allocator) -> None:
    gained = 0
    for seed in range(6):
        problem = cases.random_problem(random.Random(5000 + seed), ops=12, slack=0.2)
        first, best = run(problem, allocator, 0), run(problem, allocator, 60)
        if first is None or best is None:
            continue
        assert best.time_ns <= first.time_ns
        gained += best.time_ns < first.time_ns
        decided = decisions(problem, arrays_of(problem), best.order.tolist(), best.nodes, best.pool, allocator)
        assert check(decided) == []
        assert decided.time_ns == best.time_ns
    assert gained


def test_the_oracle_of_the_steps_of_an_rnn_is_found() -> None:
    """O8: from the order time by time to one that loads each parameter once."""
    problem = cases.rnn(2, 3, memory=16)
    arrays = arrays_of(problem)
    order = np.array(cases.time_by_time(2, 3))
    pool = Pool((1, 2), (8, 1))
    first = improve(arrays, 16, "pool", order, pool, evaluations=0)
    best = improve(arrays, 16, "pool", order, pool, evaluations=300)
    assert first is not None
    assert best is not None
    assert best.time_ns < first.time_ns
    assert best.time_ns <= 14


def test_moved_orders_stay_topological() -> None:
    rng = random.Random(5100)
    for seed in range(20):
        arrays = arrays_of(cases.random_problem(random.Random(seed), ops=12))
        order = np.arange(12)
        for _ in range(20):
            order = moved(arrays, order, rng)
            place = np.argsort(order)
            assert sorted(order.tolist()) == list(range(12))
            for op in range(12):
                before = arrays.pred[arrays.pred_ptr[op] : arrays.pred_ptr[op + 1]]
                assert (place[before] < place[op]).all()


def test_few_initial_residents_come_or_go() -> None:
    persistent = np.array([1, 4, 5, 8])
    initial = np.array([4, 8])
    for seed in range(30):
        found = toggled(initial, persistent, random.Random(seed))
        assert 1 <= len(np.setxor1d(initial, found)) <= 4
        assert set(found.tolist()) <= set(persistent.tolist())


def test_initial_residents_that_a_pass_gives_up_are_found_again() -> None:
    """O6b: the literal rule starts with nothing and takes 5; W3 can stay, and 4 is the least."""
    arrays = arrays_of(cases.two_pass_b())
    moves = {"vary_order": False, "vary_pool": False}
    first = improve(arrays, 3, "pool", np.arange(3), Pool((1,), (3,)), FAITHFUL, evaluations=0)
    best = improve(arrays, 3, "pool", np.arange(3), Pool((1,), (3,)), FAITHFUL, evaluations=100, **moves)
    assert first is not None
    assert best is not None
    assert (first.time_ns, best.time_ns) == (5, 4)
    assert best.initial is not None
    assert best.initial.tolist() == [1]


def test_without_gains_the_search_ends() -> None:
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return False

    arrays = arrays_of(cases.figure_4_1(5))
    improve(arrays, 5, "pool", np.arange(6), least_pool(arrays), evaluations=10**6, patience=20, stop=stop)
    assert 20 <= calls < 1000


def test_traded_pools_fit_and_can_run() -> None:
    rng = random.Random(5200)
    arrays = arrays_of(cases.figure_4_1())
    needed = needs(arrays)
    pool = Pool((1, 2), (8, 1))
    for _ in range(50):
        pool = traded(arrays, needed, pool, 10, rng)
        assert pool_bytes(arrays.sizes, pool) <= 10
        assert all(count >= least for count, least in zip(pool.counts, floors(needed, pool.classes), strict=True))


def test_equal_seeds_give_equal_plans_and_a_bound_ends_the_search() -> None:
    problem = cases.random_problem(random.Random(5300), ops=12, slack=0.2)
    one, other = run(problem, "bytes", 40, seed=1), run(problem, "bytes", 40, seed=1)
    assert one is not None
    assert other is not None
    assert one.time_ns == other.time_ns
    assert all((a == b).all() for a, b in zip(one.nodes, other.nodes, strict=True))
    calls = 0

    def stop() -> bool:
        nonlocal calls
        calls += 1
        return False

    arrays = arrays_of(problem)
    improve(arrays, problem.arena_bytes, "bytes", np.arange(12), evaluations=50, least_ns=10**9, stop=stop)
    assert calls == 0
