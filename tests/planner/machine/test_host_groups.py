"""Groups of near hosts: planted racks are found, with their number; hosts that are alike are one group."""

from __future__ import annotations

import random

import pytest

from treadle.planner.machine.host_costs import HostCosts
from treadle.planner.machine.host_groups import HostGroups, host_groups


def planted(racks: int, size: int, across: float, noise: float, *, rates: bool = False) -> HostCosts:
    """Hosts dealt out over racks, `across` times as far from those of another rack, with one-sided noise."""
    chance = random.Random(1)
    count = racks * size
    matrix = [[0] * count for _ in range(count)]
    for i in range(count):
        for j in range(i):
            near = 10_000 if i % racks == j % racks else 10_000 * across
            matrix[i][j] = matrix[j][i] = round(near * (1 + noise * abs(chance.gauss(0, 1))))
    costs = tuple(map(tuple, matrix))
    flat = tuple(tuple(int(i != j) * 20_000 for j in range(count)) for i in range(count))
    names = tuple(f"h{host}" for host in range(count))
    return HostCosts(names, (1,) * count, flat if rates else costs, costs if rates else None)


def grouped(costs: HostCosts) -> HostGroups:
    return host_groups(costs.latency_ns, costs.ns_per_MiB)


def racks_of(racks: int, size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(rack, racks * size, racks)) for rack in range(racks))


@pytest.mark.parametrize(("size", "across", "noise"), [(2, 3, 0.1), (3, 1.2, 0.02)])
def test_planted_racks_are_found(size: int, across: float, noise: float) -> None:
    assert grouped(planted(2, size, across, noise)).groups == racks_of(2, size)
    assert grouped(planted(2, size, across, noise, rates=True)).groups == racks_of(2, size)


@pytest.mark.slow
@pytest.mark.parametrize(("racks", "size"), [(4, 4), (8, 8)])
def test_planted_racks_are_found_among_many_hosts(racks: int, size: int) -> None:
    assert grouped(planted(racks, size, 3, 0.3)).groups == racks_of(racks, size)


@pytest.mark.parametrize(("count", "noise"), [(1, 0.0), (2, 0.3), (3, 0.3), (6, 0.0), (8, 0.3)])
def test_hosts_that_are_alike_are_one_group(count: int, noise: float) -> None:
    assert grouped(planted(1, count, 1, noise)).groups == (tuple(range(count)),)


def test_rates_that_show_racks_are_not_split_by_noisy_latencies() -> None:
    costs = planted(2, 4, 3, 0.1, rates=True)
    noise = planted(1, 8, 1, 1.0).latency_ns
    found = host_groups(noise, costs.ns_per_MiB)
    assert (found.groups, found.by) == (racks_of(2, 4), "rates")
    alike = tuple(tuple(int(i != j) * 20_000 for j in range(8)) for i in range(8))
    assert host_groups(costs.ns_per_MiB, alike)[:2] == (racks_of(2, 4), "latency")


def test_hosts_with_slow_nics_are_no_group() -> None:
    slow = tuple(tuple(int(i != j) * (40_000 if {i, j} & {1, 6} else 10_000) for j in range(8)) for i in range(8))
    assert host_groups(None, slow).groups == (tuple(range(8)),)


def test_as_many_groups_as_are_asked_for_are_found_among_hosts_that_are_alike() -> None:
    alike = tuple(tuple(int(i != j) * 20_000 for j in range(8)) for i in range(8))
    for number in (1, 3, 8):
        groups = host_groups(alike, None, number=number).groups
        assert len(groups) == number
        assert sorted(host for group in groups for host in group) == list(range(8))
