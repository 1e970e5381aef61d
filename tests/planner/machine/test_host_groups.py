"""Groups of near hosts: planted racks are found, with their number; hosts that are alike are one group."""

from __future__ import annotations

import random

import pytest

from treadle.planner.machine.host_costs import HostCosts
from treadle.planner.machine.host_groups import host_groups


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


def racks_of(racks: int, size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(rack, racks * size, racks)) for rack in range(racks))


@pytest.mark.parametrize(("size", "across", "noise"), [(2, 3, 0.1), (3, 1.2, 0.02)])
def test_planted_racks_are_found(size: int, across: float, noise: float) -> None:
    assert host_groups(planted(2, size, across, noise)) == racks_of(2, size)
    assert host_groups(planted(2, size, across, noise, rates=True)) == racks_of(2, size)


@pytest.mark.slow
@pytest.mark.parametrize(("racks", "size"), [(4, 4), (8, 8)])
def test_planted_racks_are_found_among_many_hosts(racks: int, size: int) -> None:
    assert host_groups(planted(racks, size, 3, 0.3)) == racks_of(racks, size)


@pytest.mark.parametrize(("count", "noise"), [(1, 0.0), (2, 0.3), (3, 0.3), (6, 0.0), (8, 0.3)])
def test_hosts_that_are_alike_are_one_group(count: int, noise: float) -> None:
    assert host_groups(planted(1, count, 1, noise)) == (tuple(range(count)),)
