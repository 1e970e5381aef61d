"""The order that is planned: against every order, exact tours, planted racks, and what must not change it."""

from __future__ import annotations

import threading
from functools import cache
from itertools import permutations

import numpy as np
import pytest

from tests.planner.passes.ranks.instances import (
    ALGORITHMS,
    OBJECTIVES,
    planted,
    rack_numbers,
    racks,
    ranks_problem,
    symmetric,
)
from treadle.planner.documents.plan import Plan
from treadle.planner.passes.ranks.bound import lower_bound
from treadle.planner.passes.ranks.cost import OrderCosts, cost_of
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.exact import ExactLimits, exact_order
from treadle.planner.passes.ranks.exchanges import Exchanges
from treadle.planner.passes.ranks.planning import RanksOptions, plan_ranks
from treadle.planner.passes.ranks.problem import Algorithm, RanksProblem
from treadle.planner.search.clock import Clock

LIMITS = ExactLimits(seed=0, left_s=None, stop=threading.Event())


def small(algorithm: Algorithm, count: int, seed: int) -> list[RanksProblem]:
    """Random problems for every objective, with and without rates."""
    factors = (2, count // 2) if algorithm == "bcube" and count in (4, 6) else None
    rates = symmetric(count, seed + 100, 1 << 22)
    return [
        ranks_problem(symmetric(count, seed), algorithm, objective, rates=rated, size=1000, factors=factors)
        for objective in OBJECTIVES
        for rated in (None, rates)
    ]


def shortest_tour(costs: list[list[int]]) -> int:
    """By dynamic programming over sets of hosts (Held, Karp)."""
    count = len(costs)

    @cache
    def rest(visited: int, at: int) -> int:
        left = [host for host in range(count) if not visited >> host & 1]
        return min((costs[at][host] + rest(visited | 1 << host, host) for host in left), default=costs[at][0])

    return rest(1, 0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_small_problems_get_the_best_of_all_orders_and_bounds_hold(algorithm: Algorithm) -> None:
    for count in (2, 3, 4, 6) if algorithm in ("bcube", "plan") else (1, 2, 3, 4, 6):
        orders = np.array(list(permutations(range(count))))
        for problem in small(algorithm, count, count):
            costs = OrderCosts(problem)
            best = min(zip(*(each.tolist() for each in costs.many(orders)), strict=True))
            plan = plan_ranks(problem)
            assert (plan.decisions.cost_ns, plan.decisions.tie_ns) == best
            assert plan.certificate.optimal
            assert plan.decisions.worst_ns == int(costs.many(orders)[0].max())
            assert lower_bound(costs, 10 * best[0]).time_ns <= best[0]


@pytest.mark.parametrize("algorithm", ["halving-doubling", "bcube", "tree", "double-tree", "nccl-tree", "plan"])
def test_the_exact_search_finds_the_best_of_all_orders_and_proves_it(algorithm: Algorithm) -> None:
    orders = np.array(list(permutations(range(6))))
    for problem in small(algorithm, 6, 7):
        costs = OrderCosts(problem)
        found = costs.many(orders)[0]
        least, most = int(found.min()), int(found.max())
        exact = exact_order(costs, orders[found.argmax()].tolist(), most, 0, LIMITS)
        assert exact.order is not None
        assert (cost_of(problem, exact.order).cost_ns, exact.bound_ns) == (least, least)
        assert exact_order(costs, orders[found.argmin()].tolist(), least, 0, LIMITS) == (None, least, False)


@pytest.mark.parametrize("seed", range(4))
def test_a_ring_of_ten_hosts_is_as_short_as_an_exact_tour(seed: int) -> None:
    costs = symmetric(10, seed, 50)
    plan = plan_ranks(ranks_problem(costs, "ring"))
    assert (plan.decisions.cost_ns, plan.certificate.optimal) == (shortest_tour(costs), True)


@pytest.mark.parametrize(("count", "number"), [(12, 3), (32, 4), pytest.param(64, 8, marks=pytest.mark.slow)])
def test_planted_racks_are_contiguous_on_the_ring(count: int, number: int) -> None:
    costs = planted(count, number, seed=count)
    plan = plan_ranks(ranks_problem(costs, "ring"))
    rack = rack_numbers(costs)
    order = plan.decisions.order
    assert sum(rack[a] != rack[b] for a, b in zip(order, (*order[1:], order[0]), strict=True)) == number
    assert plan.certificate.gap < 0.02


@pytest.mark.slow
def test_halving_and_doubling_over_sixteen_hosts_is_proved() -> None:
    plan = plan_ranks(ranks_problem(planted(16, 4, 1), "halving-doubling"))
    assert (plan.decisions.cost_ns, plan.certificate.optimal) == (1063, True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equal_costs_are_proved_at_once(algorithm: Algorithm) -> None:
    plan = plan_ranks(ranks_problem(racks(12, 1), algorithm))
    assert plan.provenance.parts == ()
    assert (plan.decisions.order, plan.certificate.optimal) == (tuple(range(12)), True)


def test_names_of_hosts_do_not_change_the_cost_and_a_constant_shifts_a_ring() -> None:
    costs = symmetric(9, 3)
    other = [2, 0, 7, 4, 8, 1, 3, 6, 5]
    plan = plan_ranks(ranks_problem(costs, "ring"))
    renamed = plan_ranks(ranks_problem([[costs[a][b] for b in other] for a in other], "ring"))
    shifted = plan_ranks(ranks_problem([[c + 7 if c else 0 for c in row] for row in costs], "ring"))
    least = plan.decisions.cost_ns
    assert (renamed.decisions.cost_ns, shifted.decisions.cost_ns) == (least, least + 9 * 7)


def test_exchanges_cost_what_the_orders_after_them_cost() -> None:
    generator = np.random.default_rng(0)
    for algorithm, factors in (("halving-doubling", None), ("bcube", (2, 3, 2))):
        problem = ranks_problem(symmetric(12, 1), algorithm, factors=factors)  # type: ignore[arg-type]
        rounds = Exchanges(OrderCosts(problem), range(12))
        for _ in range(20):
            a, b = generator.integers(0, 12, 2).tolist()
            maxima, totals = rounds.priced(np.array([a]), np.array([b]))
            rounds.exchange(a, b)
            assert int(maxima.sum()) == cost_of(problem, rounds.order.tolist()).cost_ns
            assert totals[:, 0].tolist() == rounds.totals.tolist()


def test_a_limit_and_an_interrupt_keep_the_best_order_and_plans_come_before() -> None:
    problem = ranks_problem(planted(48, 4, 2), "halving-doubling")
    plans: list[Plan[RanksDecisions]] = []
    clock = Clock()

    def first(plan: Plan[RanksDecisions]) -> None:
        plans.append(plan)
        if plan.decisions.cost_ns < plan.decisions.original_ns:
            clock.stop.set()

    plan = plan_ranks(problem, clock=clock, on_plan=first)
    assert plan.provenance.interrupted
    assert [each.decisions.cost_ns for each in plans] == sorted(
        (each.decisions.cost_ns for each in plans), reverse=True
    )
    assert plan.decisions.cost_ns <= plans[-1].decisions.cost_ns < plan.decisions.original_ns
    late = plan_ranks(problem, clock=Clock.of(0.0))
    assert late.provenance.limit_fired
    assert late.decisions.cost_ns <= late.decisions.original_ns


@pytest.mark.slow
def test_a_seed_gives_the_same_plan() -> None:
    problem = ranks_problem(planted(12, 3, 4), "bcube", factors=(3, 4))
    assert plan_ranks(problem, options=RanksOptions(3)) == plan_ranks(problem, options=RanksOptions(3))
