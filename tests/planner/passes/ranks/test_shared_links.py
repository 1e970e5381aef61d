"""Predicted times where hops share NICs and uplinks: counted by hand, twice by code, and as a timeline."""

from random import Random
from typing import get_args

import pytest

from treadle.planner.passes.ranks.check_costs import CountedCosts
from treadle.planner.passes.ranks.cost import OrderCosts
from treadle.planner.passes.ranks.decided import decided
from treadle.planner.passes.ranks.extract import bcube_factors
from treadle.planner.passes.ranks.problem import Algorithm, RankedHost, RanksProblem
from treadle.planner.passes.ranks.timeline_of import allreduce_of
from treadle.planner.timeline.simulator import simulate

ALGORITHMS = [algorithm for algorithm in get_args(Algorithm) if algorithm != "plan"]
INSIDE, ACROSS = 1000, 4000
"""ns per MiB: four hosts of a rack share an uplink as fast as one NIC, and all sent across when it was measured."""


def racks(algorithm: Algorithm, near: bool = True) -> RanksProblem:
    """Two racks of four hosts, 8 MiB, one ns of latency for each pair."""
    hosts = range(8)
    return RanksProblem(
        version=1,
        hosts=tuple(RankedHost(name=f"host{host}") for host in hosts),
        latency_ns=tuple(tuple(int(a != b) for b in hosts) for a in hosts),
        ns_per_MiB=tuple(tuple(0 if a == b else INSIDE if a // 4 == b // 4 else ACROSS for b in hosts) for a in hosts),
        size_bytes=8 << 20,
        algorithm=algorithm,
        factors=bcube_factors(8) if algorithm == "bcube" else (),
        near=((0, 1, 2, 3), (4, 5, 6, 7)) if near else (),
    )


def test_a_ring_that_crosses_once_has_the_whole_uplink_and_one_that_always_does_a_quarter() -> None:
    costs = OrderCosts(racks("ring"))
    assert costs.time_ns(range(8)) == 14 * (1 + INSIDE)
    assert costs.time_ns((0, 4, 1, 5, 2, 6, 3, 7)) == 14 * (1 + ACROSS)
    assert OrderCosts(racks("ring", near=False)).time_ns(range(8)) == 14 * (1 + ACROSS)


def test_halving_and_doubling_takes_the_uplink_in_the_round_between_racks() -> None:
    # 4, 2 and 1 MiB are exchanged in the three rounds
    across_last, across_first = 4 * INSIDE + 2 * INSIDE + ACROSS, 4 * ACROSS + 2 * INSIDE + INSIDE
    costs = OrderCosts(racks("halving-doubling"))
    assert costs.time_ns(range(8)) == 2 * (3 + across_last)
    assert costs.time_ns((0, 4, 1, 5, 2, 6, 3, 7)) == 2 * (3 + across_first)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_planner_checker_and_timeline_agree(algorithm: Algorithm) -> None:
    problem = racks(algorithm)
    costs, counted, random = OrderCosts(problem), CountedCosts(problem), Random(1)
    for _ in range(5):
        order = tuple(random.sample(range(8), 8))
        assert costs.time_ns(order) == counted.time(order) > 0
        assert simulate(allreduce_of(decided(problem, order, order))).makespan == costs.time_ns(order)


@pytest.mark.parametrize(
    ("near", "found"),
    [
        (((0, 1, 2, 3), (4, 5, 6)), "2 groups"),
        (((0, 1, 2, 3, 4, 5, 6, 7),), "1 groups"),
        (((0, 1, 2, 3, 4, 5, 6, 7), ()), "2 groups"),
    ],
    ids=["a host in none", "one group", "an empty one"],
)
def test_groups_that_share_nothing_are_refused(near: tuple[tuple[int, ...], ...], found: str) -> None:
    problem = racks("ring")
    broken = RanksProblem(**{**{field: getattr(problem, field) for field in problem.__struct_fields__}, "near": near})
    assert ("$.near", found) in {(path, seen) for path, seen, _ in broken.problems()}
