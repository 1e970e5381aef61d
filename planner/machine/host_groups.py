"""How many groups of near hosts there are, and which: those that are furthest apart for their size."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from statistics import median

from treadle.planner.machine.clustering import group_count
from treadle.planner.machine.host_costs import HostCosts, Rows
from treadle.planner.machine.near_hosts import near_hosts, separation

CLEAR, MARGIN, SHUFFLES = 0.4, 0.05, 3
"""Groups this far apart are taken as they are. Others must be further apart, by MARGIN, than the groups that are found
in SHUFFLES matrices of the same costs dealt out at random, in which near hosts are chance."""

ALL_NUMBERS, MOST_HOSTS, SCALE = 64, 256, 1000

Groups = tuple[tuple[int, ...], ...]


def host_groups(costs: HostCosts, seed: int = 0) -> Groups:
    """The groups of near hosts, each ascending, ordered by their first host; one group where the hosts are alike.

    Of all numbers of groups from 2 to twice the square root of the hosts, and of latencies, of rates and of both, those
    with the best mean silhouette count (Rousseeuw, "Silhouettes"). Above ALL_NUMBERS hosts only the number of PLink is
    tried, and more than MOST_HOSTS are one group: grouping them would take minutes. Deterministic in `seed`.
    """
    both = () if costs.ns_per_MiB is None else (costs.ns_per_MiB, _together(costs.latency_ns, costs.ns_per_MiB))
    return _clearest(len(costs.names), (*both, costs.latency_ns), seed)


def rate_groups(costs: HostCosts, seed: int = 0) -> Groups:
    """The same by rates only: hosts of a group share what carries bytes to the others. One group without rates."""
    return _clearest(len(costs.names), () if costs.ns_per_MiB is None else (costs.ns_per_MiB,), seed)


def _clearest(count: int, matrices: Sequence[Rows], seed: int) -> Groups:
    best = 0.0
    found: Groups = (tuple(range(count)),)
    for matrix in matrices:
        if 2 < count <= MOST_HOSTS:
            apart, groups = _furthest(matrix, seed)
            if apart > best and (apart >= CLEAR or apart > _by_chance(matrix, len(groups), seed) + MARGIN):
                best, found = apart, groups
    return found


def _together(*parts: Rows) -> Rows:
    """The parts, each divided by its median, in thousandths: what differs more between pairs says more about who is
    near."""
    hosts = range(len(parts[0]))
    usual = [max(1, round(median(part[i][j] for i, j in combinations(hosts, 2)))) for part in parts]
    return tuple(
        tuple(sum(SCALE * part[i][j] // middle for part, middle in zip(parts, usual, strict=True)) for j in hosts)
        for i in hosts
    )


def _furthest(matrix: Rows, seed: int) -> tuple[float, Groups]:
    count = len(matrix)
    most = max(2, min(count // 2, 2 * int(count**0.5)))
    numbers = range(2, most + 1) if count <= ALL_NUMBERS else (group_count(count),)
    return max((_grouped(matrix, number, seed) for number in numbers), key=lambda each: each[0])


def _grouped(matrix: Rows, number: int, seed: int) -> tuple[float, Groups]:
    groups = near_hosts(matrix, number, seed=seed).groups
    return separation(matrix, groups), groups


def _by_chance(matrix: Rows, number: int, seed: int) -> float:
    """How far apart groups are that are found by chance."""
    chance = random.Random(seed)
    return max(_grouped(_shuffled(matrix, chance), number, seed)[0] for _ in range(SHUFFLES))


def _shuffled(matrix: Sequence[Sequence[int]], chance: random.Random) -> Rows:
    pairs = list(combinations(range(len(matrix)), 2))
    costs = [matrix[i][j] for i, j in pairs]
    chance.shuffle(costs)
    dealt = dict(zip(pairs, costs, strict=True))
    hosts = range(len(matrix))
    return tuple(tuple(0 if i == j else dealt[min(i, j), max(i, j)] for j in hosts) for i in hosts)
