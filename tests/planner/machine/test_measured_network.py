"""Measured costs between hosts as a network: NICs, uplinks, and a hardware profile."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from pathlib import Path

import pytest

from tests.planner.passes.aggregation.aggregation_plans import ACROSS_NS, INSIDE_NS, Groups, problem_on
from treadle.planner.documents import store
from treadle.planner.documents.cost_matrix import CostHost, CostMatrix, PairRate
from treadle.planner.errors import InputError
from treadle.planner.machine.host_costs import HostCosts
from treadle.planner.machine.measured_network import PARTS, hardware_in, hardware_of, nics_ns, uplinks_ns
from treadle.planner.machine.nodes import expand

MIXED: Groups = ((0, 2, 4, 6), (1, 3, 5, 7))


def costs_on(groups: Groups, slow: dict[int, int] | None = None, slots: int = 1) -> HostCosts:
    """slow: how many times as long a stream of some hosts takes."""
    problem = problem_on(groups)
    factor = [(slow or {}).get(host, 1) for host in range(len(problem.hosts))]
    rates = tuple(
        tuple(ns * max(factor[i], factor[j]) for j, ns in enumerate(row)) for i, row in enumerate(problem.ns_per_MiB)
    )
    return HostCosts(
        tuple(host.name for host in problem.hosts), (slots,) * len(problem.hosts), problem.latency_ns, rates
    )


def test_a_nic_has_the_fastest_rate_of_its_host_and_an_uplink_the_mean_ones_of_its_group() -> None:
    costs = costs_on(MIXED)
    assert costs.ns_per_MiB is not None
    assert nics_ns(costs.ns_per_MiB) == (INSIDE_NS,) * 8
    assert uplinks_ns(costs.ns_per_MiB, MIXED) == (Fraction(ACROSS_NS, 4),) * 2
    assert uplinks_ns(costs.ns_per_MiB, (range(8),)) == ()


def test_an_uplink_is_no_faster_than_its_nics() -> None:
    flat = ((0, 1, 1), (1, 0, 1), (1, 1, 0))
    assert uplinks_ns(flat, ((0, 1), (2,))) == (Fraction(1, 2), 1)


def test_rates_that_all_differ_give_the_same_whole_times_without_huge_denominators() -> None:
    ns = [[900_000 + 7919 * (i * j + i + j) % 99_991 for j in range(8)] for i in range(8)]
    for group, found in zip(MIXED, uplinks_ns(ns, MIXED), strict=True):
        exact = 4 / sum(Fraction(1, ns[i][j]) for i in group for j in range(8) if j not in group)
        assert found.denominator <= PARTS < exact.denominator
        for size in (1, 2**20, 10**9 + 7, 2**36):
            assert ceil(size * found / 2**20) == ceil(size * exact / 2**20)


def test_racks_become_uplinks_and_latencies_inside_groups() -> None:
    found = hardware_of("probed", costs_on(MIXED), MIXED, "costs.json")
    assert not [*found.problems()]
    network = found.network
    assert network is not None
    assert found.nodes == 8
    assert (network.alpha_us, network.beta_us_per_MB) == (50, 800)
    assert [(group.nodes, group.alpha_us) for group in network.groups] == [(group, 20) for group in MIXED]
    assert [(uplink.nodes, uplink.beta_us_per_MB) for uplink in network.uplinks] == [(group, 800) for group in MIXED]


def test_a_slow_host_has_a_slow_nic() -> None:
    found = hardware_of("probed", costs_on((range(4),), {3: 4}, slots=2), (range(4),), "costs.json")
    assert (found.nodes, [other.nodes for other in found.other_nodes]) == (3, [1])
    betas = {link.beta_us_per_MB for link in expand(found).links if link.kind == "measured"}
    assert sorted(round(beta or 0) for beta in betas) == [800, pytest.approx(3200, rel=0.05)]


def test_what_measuring_twice_would_change_makes_no_unequal_hosts() -> None:
    costs = costs_on(MIXED)
    assert costs.ns_per_MiB is not None
    noisy = tuple(
        tuple(ns and ns + (7919 * (i + j)) % 20_000 for j, ns in enumerate(row))
        for i, row in enumerate(costs.ns_per_MiB)
    )
    assert not hardware_of("probed", costs._replace(ns_per_MiB=noisy), MIXED, "costs.json").other_nodes


def test_the_cost_matrix_of_hosts_is_read_as_their_profile(tmp_path: Path) -> None:
    costs = costs_on(((0, 1),))
    matrix = CostMatrix(
        version=1,
        name="pair",
        hosts=tuple(CostHost(name=name) for name in costs.names),
        latency_us=((0, 20), (20, 0)),
        rates=(PairRate(0, 1, 1e9), PairRate(1, 0, 5e8)),
    )
    store.save(matrix, tmp_path / "costs.json")
    found = hardware_in(tmp_path / "costs.json")
    assert (found.name, found.nodes) == ("pair", 2)
    assert found.network is not None
    assert found.network.beta_us_per_MB == pytest.approx(2**20 / 5e8 * 1e6, rel=1e-5)  # the slower direction
    store.save(
        CostMatrix(version=1, name="pair", hosts=matrix.hosts, latency_us=matrix.latency_us), tmp_path / "no.json"
    )
    with pytest.raises(InputError, match="found no rates"):
        hardware_in(tmp_path / "no.json")
