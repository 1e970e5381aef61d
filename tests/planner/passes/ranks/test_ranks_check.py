"""The independent checker: plans broken in one place each are refused, and it agrees with the planner on costs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from random import Random

import pytest
from msgspec.structs import replace

from tests.planner.passes.ranks.instances import ALGORITHMS, IRREGULAR, OBJECTIVES, racks, ranks_problem, symmetric
from treadle.planner.documents.costed_hosts import MOST_NS
from treadle.planner.passes.ranks.check import check
from treadle.planner.passes.ranks.check_costs import CountedCosts
from treadle.planner.passes.ranks.check_patterns import expected_trees
from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.decided import decided
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.planner.passes.ranks.problem import PlanHop, RankedHost, RanksProblem

Edit = Callable[[RanksDecisions], RanksDecisions]
RATES = symmetric(4, 5, 900)


def good() -> RanksDecisions:
    """The best ring over the irregular costs: 18 against 21 as handed out and 29."""
    return decided(ranks_problem(IRREGULAR, "ring"), (0, 1, 3, 2), (0, 2, 1, 3))


def problem(**changes: object) -> Edit:
    return lambda plan: replace(plan, problem=replace(plan.problem, **changes))


def plan(**changes: object) -> Edit:
    return lambda plan: replace(plan, **changes)


def other(given: RanksProblem, order: tuple[int, ...], worst: tuple[int, ...]) -> Edit:
    return lambda _: decided(given, order, worst)


def edited(matrix: tuple[tuple[int, ...], ...], row: int, column: int, cost: int) -> tuple[tuple[int, ...], ...]:
    return tuple(
        tuple(cost if (i, j) == (row, column) else each for j, each in enumerate(found))
        for i, found in enumerate(matrix)
    )


TWO_RACKS = ranks_problem(racks(4, 2), "halving-doubling")
SIZED = ranks_problem(IRREGULAR, "tree", rates=RATES, size=2**20)
HOSTS = good().problem.hosts
HOPS = (PlanHop(0, 1, 5), PlanHop(1, 2, 5, (0,)))
LATER = (PlanHop(0, 1, 5, (1,)), PlanHop(1, 2, 5))
BEYOND = (PlanHop(0, 4, 5),)
BROKEN: dict[str, tuple[Edit, str]] = {
    "a host left out": (plan(order=(0, 1, 3)), "order: found 3 hosts, expected each of the 4 hosts once"),
    "a host twice": (plan(order=(0, 1, 3, 1)), "order[3]: found host 1 again"),
    "a host that is none": (plan(order=(0, 1, 4, 2)), "order[2]: found host 4"),
    "a host too many": (plan(order=(0, 1, 3, 2, 0)), "order: found 5 hosts"),
    "a worst order with a host twice": (plan(worst=(0, 2, 2, 3)), "worst[2]: found host 2 again"),
    "no worst order": (plan(worst=()), "worst: found 0 hosts"),
    "a cost too low": (plan(cost_ns=17), "cost_ns: found 17, expected 18"),
    "a cost too high": (plan(cost_ns=19), "cost_ns: found 19, expected 18"),
    "another tie": (plan(tie_ns=0), "tie_ns: found 0, expected 18"),
    "original hosts dearer than they are": (plan(original_ns=30), "original_ns: found 30, expected 21"),
    "random orders dearer than they are": (plan(median_ns=29), "median_ns: found 29, expected 21"),
    "a worst order dearer than it is": (plan(worst_ns=40), "worst_ns: found 40, expected 29"),
    "a time too short": (plan(time_ns=53), "time_ns: found 53, expected 54"),
    "order and worst order exchanged": (plan(order=(0, 2, 1, 3), worst=(0, 1, 3, 2)), "cost_ns: found 18, expected 29"),
    "an order worse than as handed out": (
        other(ranks_problem(IRREGULAR, "ring"), (0, 2, 1, 3), (0, 2, 1, 3)),
        "order: found a cost of 29 ns, expected at most 21 ns, as handed out",
    ),
    "an order that loses the tie": (
        other(TWO_RACKS, (0, 2, 1, 3), (0, 2, 3, 1)),
        "order: found a cost of 11 ns, expected at most 11 ns, then 12, as handed out",
    ),
    "a worst order that is none": (
        other(ranks_problem(IRREGULAR, "ring"), (0, 1, 3, 2), (0, 1, 3, 2)),
        "worst: found a cost of 18 ns, expected at least 21 ns",
    ),
    "index sets of the printed formula": (
        lambda _: replace(decided(TWO_RACKS, (0, 1, 2, 3), (0, 2, 3, 1)), cost_ns=20),
        "cost_ns: found 20, expected 11",
    ),
    "the cost of another objective": (
        problem(objective="bottleneck"), "cost_ns: found 18, expected 9"
    ),
    "the cost of another algorithm": (problem(algorithm="tree"), "cost_ns: found 18, expected "),
    "the cost of another size": (
        lambda _: problem(size_bytes=2**21)(decided(SIZED, (0, 1, 2, 3), (0, 2, 1, 3))), "cost_ns: found "
    ),
    "a latency of one direction": (
        problem(latency_ns=edited(IRREGULAR, 2, 0, 8)), "problem.latency_ns[0][2]: found 9, expected 8"
    ),
    "a cost from a host to itself": (
        problem(latency_ns=edited(IRREGULAR, 1, 1, 3)), "problem.latency_ns[1][1]: found 3, expected 0"
    ),
    "a row left out": (problem(latency_ns=IRREGULAR[:3]), "problem.latency_ns: found 3 rows of [4]"),
    "a rate of one direction": (
        problem(ns_per_MiB=edited(tuple(map(tuple, RATES)), 3, 1, 5)), "problem.ns_per_MiB[1][3]: found "
    ),
    "a hop without end": (
        problem(latency_ns=racks(4, 2, across=MOST_NS + 1)), f"found {MOST_NS + 1}, expected at most {MOST_NS}"
    ),
    "more bytes than can be sent": (
        problem(ns_per_MiB=racks(4, 2, across=MOST_NS), size_bytes=2**40), "problem.size_bytes: found 1099511627776 "
    ),
    "a host that occurs twice": (problem(hosts=(*HOSTS[:3], HOSTS[0])), "problem.hosts: found 'h0' twice"),
    "hosts of different slots": (
        problem(hosts=(*HOSTS[:3], RankedHost(name="h3", slots=2))), "problem.hosts: found 1 and 2 slots"
    ),
    "no host": (problem(hosts=(), latency_ns=()), "problem.hosts: found none"),
    "groups of the wrong product": (problem(algorithm="bcube", factors=(2, 3)), "problem.factors: found 2 * 3"),
    "groups of a ring": (problem(factors=(2, 2)), "problem.factors: found some, expected none but for bcube"),
    "a plan without hops": (problem(algorithm="plan"), "problem.hops: found 0 of plan"),
    "hops of a ring": (problem(hops=HOPS), "problem.hops: found 2 of ring"),
    "a hop after a later one": (problem(algorithm="plan", hops=LATER), "problem.hops[0]: found 0 -> 1 after (1,)"),
    "a hop to a place that is none": (problem(algorithm="plan", hops=BEYOND), "problem.hops[0]: found 0 -> 4"),
}  # fmt: skip


def test_a_sound_plan_is_accepted() -> None:
    assert check(good()) == []
    assert (good().cost_ns, good().original_ns, good().worst_ns, good().time_ns) == (18, 21, 29, 2 * 3 * 9)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plan_is_refused_in_the_right_place(kind: str) -> None:
    edit, message = BROKEN[kind]
    found = check(edit(good()))
    assert any(each.startswith(f"$.decisions.{message}") or message in each for each in found), found
    assert all(each.startswith("$.decisions.") for each in found)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_checker_and_the_planner_agree_on_costs(algorithm: str) -> None:
    groups = {4: (2, 2), 12: (3, 2, 2), 16: (4, 4), 24: (4, 3, 2)}
    for count in (2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 24):
        for place, objective in enumerate(OBJECTIVES):
            factors = groups.get(count) if algorithm == "bcube" else None
            for rates in (None, symmetric(count, count + place, 10**6)):
                given = ranks_problem(
                    symmetric(count, count - place, 10**5),
                    algorithm,
                    objective,
                    rates=rates,
                    size=12_345_677,
                    factors=factors,
                )
                order = Random(count).sample(range(count), count)
                counted, priced = CountedCosts(given), OrderCosts(given)
                assert (counted.cost(order), counted.tie(order)) == priced.of(order), (count, objective, rates)
                assert counted.time(order) == priced.time_ns(order)


def enumerated(given: RanksProblem) -> tuple[int, int, int]:
    """The least and the largest cost of all orders, and that of the hosts as they are."""
    counted = CountedCosts(given)
    costs = [counted.cost(order) for order in permutations(range(len(given.hosts)))]
    return min(costs), max(costs), counted.cost(range(len(given.hosts)))


def test_racks_cost_what_was_enumerated() -> None:
    """Two racks of two hosts, 1 inside and 10 across; the orders (0,1,2,3), (0,2,1,3) and (0,2,3,1)."""
    costs = racks(4, 2)
    for algorithm, objective, wanted, span in (
        ("ring", "sum", [22, 40, 22], (22, 40)),
        ("halving-doubling", "sum", [11, 11, 20], (11, 20)),
        ("double-tree", "sum", [11, 20, 11], (11, 20)),
        ("halving-doubling", "bytes", [12, 21, 30], (12, 30)),
    ):
        given = ranks_problem(costs, algorithm, objective)
        counted = CountedCosts(given)
        assert [counted.cost(order) for order in ((0, 1, 2, 3), (0, 2, 1, 3), (0, 2, 3, 1))] == wanted
        assert enumerated(given)[:2] == span


def test_irregular_costs_are_those_that_were_enumerated() -> None:
    for algorithm, objective, wanted in (
        ("ring", "sum", (18, 29, 21)),
        ("halving-doubling", "sum", (12, 19, 12)),
        ("halving-doubling", "bytes", (15, 29, 15)),
        ("double-tree", "sum", (9, 19, 10)),
    ):
        assert enumerated(ranks_problem(IRREGULAR, algorithm, objective)) == wanted
    assert enumerated(ranks_problem(IRREGULAR, "tree"))[::2] == (6, 9)
    assert CountedCosts(ranks_problem(IRREGULAR, "tree")).cost((2, 3, 1, 0)) == 6
    double = CountedCosts(ranks_problem(IRREGULAR, "double-tree"))
    assert double.cost((0, 1, 3, 2)) == double.cost((2, 3, 1, 0)) == 9
    pairs = ranks_problem(IRREGULAR, "bcube", factors=(2, 2))
    assert enumerated(pairs) == enumerated(ranks_problem(IRREGULAR, "halving-doubling"))
    assert enumerated(ranks_problem(IRREGULAR, "bcube", factors=(4,))) == (10, 10, 10)


def test_eight_hosts_as_they_are_cost_what_was_enumerated() -> None:
    for algorithm, two, four in (("ring", 26, 44), ("halving-doubling", 12, 21), ("double-tree", 20, 21)):
        assert CountedCosts(ranks_problem(racks(8, 2), algorithm)).cost(range(8)) == two
        assert CountedCosts(ranks_problem(racks(8, 4), algorithm)).cost(range(8)) == four
    assert CountedCosts(ranks_problem(racks(8, 2), "ring")).cost((0, 4, 1, 5, 2, 6, 3, 7)) == 80


def test_bcube_costs_a_round_in_the_rack_and_one_across() -> None:
    assert CountedCosts(ranks_problem(racks(9, 3), "bcube", factors=(3, 3))).cost(range(9)) == 11
    assert CountedCosts(ranks_problem(racks(16, 4), "bcube", factors=(4, 4))).cost(range(16)) == 11
    mixed = CountedCosts(ranks_problem(racks(9, 3), "bcube", factors=(3, 3)))
    assert mixed.cost((0, 1, 3, 2, 4, 6, 5, 7, 8)) == 20


def test_trees_have_the_known_shapes() -> None:
    def edges(algorithm: str, count: int, number: int = 0) -> set[tuple[int, int]]:
        tree = expected_trees(ranks_problem(racks(count, 1), algorithm))[number]  # type: ignore[arg-type]
        return {(place, child) for place, below in tree.children.items() for child in below}

    assert edges("tree", 4) == edges("double-tree", 4) == {(1, 0), (1, 2), (2, 3)}
    assert edges("double-tree", 4, 1) == {(0, 3), (0, 1), (1, 2)}
    assert edges("tree", 7) == {(3, 1), (1, 0), (1, 2), (3, 5), (5, 4), (5, 6)}
    assert edges("nccl-tree", 4) == {(0, 2), (2, 1), (2, 3)}
    assert edges("nccl-tree", 4, 1) == {(3, 1), (1, 2), (1, 0)}
    assert edges("nccl-tree", 5, 1) == {(1, 0), (0, 3), (3, 2), (3, 4)}


def test_any_plan_costs_its_critical_path_and_nothing_within_a_host() -> None:
    hops = (PlanHop(0, 1, 2), PlanHop(2, 3, 1), PlanHop(1, 1, 9, (0,)), PlanHop(1, 2, 3, (1, 2)))
    given = ranks_problem(IRREGULAR, "plan", hops=hops)
    assert CountedCosts(given).cost((0, 1, 2, 3)) == max(2, 3) + 6
    assert CountedCosts(given).cost((2, 3, 0, 1)) == max(3, 2) + 10
    assert CountedCosts(replace(given, objective="bytes")).cost((0, 1, 2, 3)) == max(2 * 2, 3) + 3 * 6
    assert CountedCosts(replace(given, objective="bottleneck")).cost((0, 1, 2, 3)) == 6
