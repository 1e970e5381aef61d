"""Planted orders and pools, and climbing from a pool to better ones."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planner.passes.swap import cases
from tests.planner.passes.swap.plans import evaluate
from treadle.planner.passes.swap.arrays import arrays_of
from treadle.planner.passes.swap.layout import pool_bytes
from treadle.planner.passes.swap.problem import SwapProblem
from treadle.planner.passes.swap.search.climbing import climbed, neighbours
from treadle.planner.passes.swap.search.executors import executor
from treadle.planner.passes.swap.search.fitness import pool_of
from treadle.planner.passes.swap.search.individual import Individual, Scored
from treadle.planner.passes.swap.search.orders import depth_first, planted_orders
from treadle.planner.passes.swap.search.planting import planted, pool_space
from treadle.planner.passes.swap.search.pools import best_cuts, live_counts
from treadle.planner.passes.swap.two_pass import FAITHFUL


def topological(problem: SwapProblem, order: np.ndarray) -> bool:
    arrays = arrays_of(problem)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return sorted(order) == list(range(len(order))) and all(
        place[before] < place[op]
        for op in range(len(order))
        for before in arrays.pred[arrays.pred_ptr[op] : arrays.pred_ptr[op + 1]]
    )


@given(st.integers(0, 10_000))
def test_planted_individuals_are_topological_and_fit(seed):
    problem = cases.random_problem(random.Random(seed))
    arrays = arrays_of(problem)
    space = pool_space(arrays, problem.arena_bytes, FAITHFUL)
    orders = list(planted_orders(arrays, space.start.order, problem.arena_bytes))
    assert np.array_equal(orders[0], np.arange(len(problem.ops)))
    assert all(topological(problem, order) for order in orders)
    for individual in [*planted(space), *neighbours(space, space.start)]:
        time = space.time_of(individual)
        if time is not None:
            assert pool_bytes(arrays.sizes, pool_of(individual)) <= problem.arena_bytes
            assert time == evaluate(arrays, individual.order, pool_of(individual), FAITHFUL)
    assert space.time_of(space.start) is not None


def test_depth_first_follows_a_branch_to_its_end():
    """Data, then Conv1 which ends a branch, then the other branch."""
    problem = cases.figure_4_1()
    assert list(depth_first(arrays_of(problem), np.arange(6))) == [0, 1, 2, 3, 4, 5]
    assert list(depth_first(arrays_of(problem), np.array([0, 2, 1, 3, 4, 5]))) == [0, 2, 3, 4, 1, 5]


def test_one_planted_order_runs_an_rnn_layer_by_layer():
    problem = cases.rnn(4, 6, 14)
    arrays = arrays_of(problem)
    slow = np.array(cases.time_by_time(4, 6), np.int64)
    orders = list(planted_orders(arrays, slow, problem.arena_bytes))
    switches = [int((np.diff(order // 6) != 0).sum()) for order in orders]
    assert switches[0] == 23
    assert min(switches) == 3


def test_enough_memory_needs_no_copies():
    problem = cases.figure_4_1(12)
    space = pool_space(arrays_of(problem), problem.arena_bytes, FAITHFUL)
    assert space.time_of(space.start) == problem.ideal_ns


def test_live_counts_of_a_chain():
    """W1 and W2 live throughout, the others from their makers to their last readers."""
    problem = cases.two_pass_a()
    assert live_counts(arrays_of(problem), np.arange(2)).tolist() == [[3], [4]]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_cuts_are_the_best_of_all(seed):
    rng = np.random.default_rng(seed)
    sizes = np.cumsum(rng.integers(1, 9, 5))
    live = rng.integers(0, 6, (7, 5))

    def cost(classes: np.ndarray) -> int:
        return sum(
            int(live[:, classes == q].sum(axis=1).max()) * int(sizes[classes == q].max())
            for q in range(1, classes.max() + 1)
        )

    every = [1 + np.cumsum([0, *(n >> i & 1 for i in range(4))]) for n in range(16)]
    for k, cut in list(enumerate(best_cuts(live, sizes, 5)))[1:]:
        assert cut.max() == k
        assert cost(cut) == min(cost(other) for other in every if other.max() == k)


def test_climbing_ends_where_no_neighbour_is_better():
    problem = cases.random_problem(random.Random(11), ops=14, slack=0.3)
    space = pool_space(arrays_of(problem), problem.arena_bytes, FAITHFUL)
    worst = Individual(space.start.order, np.ones_like(space.start.classes), np.array([1]))
    count = problem.arena_bytes // int(space.arrays.sizes[-1])
    worst = worst._replace(counts=np.array([count]))
    with executor(space, 1, None, lambda: False) as evaluate_:
        found = climbed(space, Scored(worst, space.time_of(worst)), evaluate_, 50)
    assert found.time is not None
    times = [space.time_of(one) for one in neighbours(space, found.individual)]
    assert all(time is None or time >= found.time for time in times)
