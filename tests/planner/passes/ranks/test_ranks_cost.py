"""Costs of orders: what was enumerated over every order, and what follows from the models."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from tests.planner.passes.ranks.instances import ALGORITHMS, IRREGULAR, OBJECTIVES, racks, ranks_problem, symmetric
from treadle.planner.errors import InputError
from treadle.planner.passes.ranks.cost import OrderCosts, cost_of, time_of
from treadle.planner.passes.ranks.problem import Algorithm, Objective, PlanHop
from treadle.planner.passes.ranks.samples import random_orders

TWO_RACKS = racks(4, 2)


def all_costs(costs: list[list[int]], algorithm: Algorithm, objective: Objective = "sum", **more: object) -> list[int]:
    """Of every order, in lexicographic order."""
    problem = ranks_problem(costs, algorithm, objective, **more)  # type: ignore[arg-type]
    orders = np.array(list(permutations(range(len(costs)))))
    return [int(cost) for cost in OrderCosts(problem).many(orders)[0]]


@pytest.mark.parametrize(
    ("algorithm", "objective", "costs", "least", "most"),
    [
        ("ring", "sum", (22, 40, 22), 22, 40),
        ("halving-doubling", "sum", (11, 11, 20), 11, 20),
        ("double-tree", "sum", (11, 20, 11), 11, 20),
        ("halving-doubling", "bytes", (12, 21, 30), 12, 30),
    ],
)
def test_two_racks_of_two(
    algorithm: Algorithm, objective: Objective, costs: tuple[int, ...], least: int, most: int
) -> None:
    problem = ranks_problem(TWO_RACKS, algorithm, objective)
    found = [cost_of(problem, order).cost_ns for order in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 2, 3, 1))]
    every = all_costs(TWO_RACKS, algorithm, objective)
    assert (*found, min(every), max(every)) == (*costs, least, most)


@pytest.mark.parametrize(
    ("algorithm", "objective", "identity", "least", "most", "best"),
    [
        ("ring", "sum", 21, 18, 29, {(0, 1, 3, 2)}),
        ("halving-doubling", "sum", 12, 12, 19, {(0, 1, 2, 3)}),
        ("halving-doubling", "bytes", 15, 15, 29, {(0, 1, 2, 3)}),
        ("tree", "sum", 9, 6, None, {(2, 3, 1, 0)}),
        ("double-tree", "sum", 10, 9, 19, {(0, 1, 3, 2), (2, 3, 1, 0)}),
    ],
)
def test_four_hosts_with_irregular_costs(
    algorithm: Algorithm, objective: Objective, identity: int, least: int, most: int | None, best: set[tuple[int, ...]]
) -> None:
    every = all_costs([*map(list, IRREGULAR)], algorithm, objective)
    assert (every[0], min(every)) == (identity, least)
    assert most is None or max(every) == most
    assert best <= {order for order, cost in zip(permutations(range(4)), every, strict=True) if cost == least}


def test_bcube_with_pairs_is_halving_and_doubling_and_with_one_group_costs_the_same_in_every_order() -> None:
    costs = [*map(list, IRREGULAR)]
    for objective in OBJECTIVES:
        halving = all_costs(costs, "halving-doubling", objective)
        assert all_costs(costs, "bcube", objective, factors=(2, 2)) == halving
    assert {*all_costs(costs, "bcube", factors=(4,))} == {10}


@pytest.mark.parametrize(
    ("count", "algorithm", "figures"),
    [
        (2, "ring", (26, 80, 26)),
        (2, "halving-doubling", (12, 30, 12)),
        (2, "double-tree", (12, 30, 20)),
        (4, "ring", (44, 80, 44)),
        (4, "halving-doubling", (21, 30, 21)),
        (4, "double-tree", (21, 30, 21)),
    ],
)
def test_eight_hosts_in_racks(count: int, algorithm: Algorithm, figures: tuple[int, int, int]) -> None:
    every = all_costs(racks(8, count), algorithm)
    assert (min(every), max(every), every[0]) == figures


def test_bcube_on_racks_as_wide_as_its_groups() -> None:
    nine = ranks_problem(racks(9, 3), "bcube", factors=(3, 3))
    assert cost_of(nine, range(9)).cost_ns == 11
    assert max(cost_of(nine, order).cost_ns for order in random_orders(9)) == 20
    assert cost_of(ranks_problem(racks(16, 4), "bcube", factors=(4, 4)), range(16)).cost_ns == 11


def test_a_hop_costs_its_latency_and_its_bytes_at_the_rate_rounded_up() -> None:
    costs, rates = [[0, 5], [5, 0]], [[0, 1 << 20], [1 << 20, 0]]
    ring = ranks_problem(costs, "ring", rates=rates, size=5)
    assert cost_of(ring, (0, 1)) == (2 * (5 + 3), 0)
    assert time_of(ring, (0, 1)) == 2 * 1 * (5 + 3)
    halving = ranks_problem(costs, "halving-doubling", "bytes", rates=rates, size=5)
    assert cost_of(halving, (0, 1)) == (5, 5 + 3)
    tiny = [[0, 1], [1, 0]]
    assert cost_of(ranks_problem(costs, "ring", rates=tiny, size=5), (0, 1)).cost_ns == 2 * (5 + 1)


def test_ties_are_decided_by_bytes_where_only_latencies_are_known_and_by_the_sum_for_the_bottleneck() -> None:
    assert cost_of(ranks_problem(TWO_RACKS, "halving-doubling"), (0, 1, 2, 3)) == (11, 12)
    assert cost_of(ranks_problem(TWO_RACKS, "halving-doubling"), (0, 2, 1, 3)) == (11, 21)
    assert cost_of(ranks_problem(TWO_RACKS, "halving-doubling", "bytes"), (0, 2, 1, 3)) == (21, 11)
    assert cost_of(ranks_problem(TWO_RACKS, "ring", "bottleneck"), (0, 1, 2, 3)) == (10, 22)


def test_hops_of_a_plan_wait_for_those_before_and_cost_nothing_within_a_host() -> None:
    hops = (
        PlanHop(0, 1, 3),
        PlanHop(2, 3, 1),
        PlanHop(1, 2, 2, (0, 1)),
        PlanHop(3, 3, 9, (1, 2)),
        PlanHop(3, 0, 1, (3,)),
    )
    sums = ranks_problem(IRREGULAR, "plan", hops=hops)
    assert cost_of(sums, (0, 1, 2, 3)) == (max(2, 3) + 6 + 10, max(6, 3) + 12 + 10)
    assert cost_of(ranks_problem(IRREGULAR, "plan", "bottleneck", hops=hops), (0, 1, 2, 3)) == (10, 19)
    assert time_of(sums, (0, 1, 2, 3)) == 19


def test_the_predicted_time_is_twice_that_of_one_half() -> None:
    assert time_of(ranks_problem(IRREGULAR, "halving-doubling"), (0, 1, 2, 3)) == 24
    assert time_of(ranks_problem(IRREGULAR, "ring", "bytes"), (0, 1, 2, 3)) == 2 * 3 * 10
    assert [time_of(ranks_problem([[0]], algorithm), (0,)) for algorithm in ("ring", "tree", "nccl-tree")] == [0] * 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_orders_cost_together_what_they_cost_one_by_one(algorithm: Algorithm) -> None:
    for objective in OBJECTIVES:
        problem = ranks_problem(symmetric(6, 1), algorithm, objective, rates=symmetric(6, 2, 1 << 22), size=1000)
        orders = random_orders(6, 20)
        together = OrderCosts(problem).many(np.array(orders))
        assert [cost_of(problem, order) for order in orders] == [
            *zip(*(each.tolist() for each in together), strict=True)
        ]


def test_random_orders_are_the_same_ones_every_time() -> None:
    assert random_orders(5, 2) == ((2, 1, 0, 4, 3), (0, 2, 1, 3, 4))
    assert len(random_orders(7)) == 101
    assert random_orders(7, seed=1) != random_orders(7)


def test_costs_beyond_what_can_be_counted_are_refused() -> None:
    huge = [[0, 1 << 40], [1 << 40, 0]]
    with pytest.raises(InputError, match="hops of 2199023255552 bytes at these costs take longer"):
        OrderCosts(ranks_problem(huge, "ring", rates=huge, size=1 << 42))
