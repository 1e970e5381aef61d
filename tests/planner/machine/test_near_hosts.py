"""Groups of near hosts: the published examples, planted racks, and what a user may not ask for."""

from __future__ import annotations

import numpy as np
import pytest

from treadle.planner.errors import InputError
from treadle.planner.machine.clustering import clustered, group_count
from treadle.planner.machine.embedding import embedded
from treadle.planner.machine.near_hosts import divisions, near_hosts, separation
from treadle.planner.machine.paia import affinity_accuracy, shared_places

Costs = list[list[int]]


def planted(racks: int, size: int, noise: float, seed: int = 0) -> tuple[Costs, list[int]]:
    """Costs of 100 in a rack and 400 between, in a random order of hosts, with noise that only adds; and the rack of
    each host."""
    random = np.random.default_rng(seed)
    rack = random.permutation(racks * size) // size
    costs = np.where(rack[:, None] == rack[None, :], 100, 400) * (1 + noise * abs(random.normal(size=(len(rack),) * 2)))
    costs = np.maximum(costs, costs.T)
    np.fill_diagonal(costs, 0)
    return costs.astype(int).tolist(), rack.tolist()


@pytest.mark.parametrize(("hosts", "groups"), [(1, 1), (8, 3), (10, 3), (16, 4), (64, 8)])
def test_the_number_of_groups_minimises_what_a_global_master_receives(hosts: int, groups: int) -> None:
    assert group_count(hosts) == groups
    assert hosts / groups + groups == min(hosts / k + k for k in range(1, hosts + 1))


@pytest.mark.parametrize(
    ("elasticity", "groups", "inertia"), [(1.0, ((0, 1), (2, 3)), 32.5), (2.0, ((0, 1, 2), (3,)), 2.0)]
)
def test_balance_costs_inertia(elasticity: float, groups: tuple[tuple[int, ...], ...], inertia: float) -> None:
    found = clustered([(0.0,), (1.0,), (2.0,), (10.0,)], 2, elasticity=elasticity)
    assert (found.groups, found.inertia) == (groups, pytest.approx(inertia))


@pytest.mark.parametrize("alpha", [1, 2])
def test_points_of_a_line_are_embedded_without_loss(alpha: int) -> None:
    line = np.array([0, 1, 3, 7])
    found = embedded((abs(line[:, None] - line[None, :]) ** alpha).tolist(), alpha=alpha, dimensions=1)
    assert found.loss < 1e-17
    between = np.diff(sorted(point[0] for point in found.points))
    assert between / between[0] == pytest.approx([1, 2, 4])


def test_a_cost_that_a_host_adds_to_all_of_its_pairs_becomes_its_height() -> None:
    line = np.array([0.0, 1, 3, 4, 7, 9])
    costs = abs(line[:, None] - line[None, :])
    costs[2, :] += 5
    costs[:, 2] += 5
    np.fill_diagonal(costs, 0)
    with_heights = embedded(costs.tolist(), alpha=1, dimensions=1, heights=True)
    assert with_heights.loss < 1e-6 < embedded(costs.tolist(), alpha=1, dimensions=1).loss
    assert with_heights.heights.index(max(with_heights.heights)) == 2


@pytest.mark.parametrize(("racks", "size", "noise"), [(2, 4, 1.0), (4, 4, 0.5), (8, 8, 0.5)])
def test_planted_racks_are_found(racks: int, size: int, noise: float) -> None:
    costs, rack = planted(racks, size, noise)
    groups = near_hosts(costs, racks).groups
    assert sorted(host for group in groups for host in group) == [*range(racks * size)]
    assert all(len({rack[host] for host in group}) == 1 for group in groups)
    assert separation(costs, groups) > 0.25


def test_hosts_that_are_alike_get_groups_that_are_not_apart() -> None:
    costs, _ = planted(1, 16, 0.1)
    found = near_hosts(costs)
    assert len(found.groups) == 4
    assert min(len(group) for group in found.groups) >= 2
    assert separation(costs, found.groups) < 0.25


def test_one_seed_gives_one_result() -> None:
    costs, _ = planted(2, 4, 1.0)
    assert near_hosts(costs, seed=3) == near_hosts(costs, seed=3)


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_few_hosts_have_groups_too(hosts: int) -> None:
    costs = [[0 if i == j else 10 for j in range(hosts)] for i in range(hosts)]
    assert sorted(host for group in near_hosts(costs).groups for host in group) == [*range(hosts)]
    assert near_hosts(costs, hosts).groups == tuple((host,) for host in range(hosts))


def test_groups_and_elasticities_that_cannot_be_are_refused() -> None:
    points = [(0.0,), (1.0,)]
    with pytest.raises(InputError, match="found 3 groups of 2 hosts, expected 1 to 2"):
        clustered(points, 3)
    with pytest.raises(InputError, match=r"found an elasticity of 2\.5, expected 1 to 2"):
        clustered(points, 2, elasticity=2.5)


def test_the_alpha_is_that_of_the_groups_that_are_farther_apart() -> None:
    costs, _ = planted(10, 3, 1.0, seed=1)
    two, one = divisions(costs, [10])
    assert (two.embedded.alpha, one.embedded.alpha) == (2, 1)
    assert separation(costs, two.groups) < separation(costs, one.groups)
    assert near_hosts(costs, 10) == one


def test_embedding_costs_takes_noise_out_of_positions() -> None:
    """A cluster costs 30, a row 20 and a rack 10, with noise of one side."""
    random = np.random.default_rng(0)
    positions = [(0, cluster, rack, host) for cluster in range(4) for rack in range(4) for host in range(4)]
    common = [[shared_places(one, other) for other in positions] for one in positions]
    costs = np.array([0, 30, 20, 10, 0])[np.array(common)] * (1 + abs(random.normal(size=(64, 64))))
    costs = np.maximum(costs, costs.T)
    raw = affinity_accuracy(costs.tolist(), positions)
    points = np.array(embedded(costs.tolist()).points)
    near = affinity_accuracy(((points[:, None] - points[None, :]) ** 2).sum(2).tolist(), positions)
    assert raw.compared == near.compared
    assert raw.correct / raw.compared < 0.9 < 0.94 < near.correct / near.compared


def test_affinity_of_the_published_example() -> None:
    costs = [[0, 10, 30, 25], [10, 0, 28, 40], [30, 28, 0, 35], [25, 40, 35, 0]]
    positions = [(0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 1), (0, 0, 0, 0, 1, 0), (0, 0, 0, 1, 0, 0)]
    assert affinity_accuracy(costs, positions) == (7, 8)


def test_equal_costs_of_unequal_positions_are_wrong() -> None:
    assert affinity_accuracy([[0, 5, 5], [5, 0, 5], [5, 5, 0]], [(0, 0), (0, 1), (1, 0)]) == (0, 2)
