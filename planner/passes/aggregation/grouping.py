"""Which hosts are near each other, by latencies or by rates, in the number of groups that is the clearest.

PLink takes as many groups as minimise what a global master receives, the square root of the number of hosts. Racks show
as a gap: groups merged one by one, nearest first by their mean costs, suddenly cost much more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.errors import InputError
from treadle.planner.machine.clustering import clustered, group_count
from treadle.planner.machine.embedding import Embedded
from treadle.planner.machine.measured_network import nics_ns
from treadle.planner.machine.near_hosts import divisions, separation
from treadle.planner.passes.aggregation.problem import AggregationProblem

Groups = tuple[tuple[int, ...], ...]
Matrix = Sequence[Sequence[float]]
CLEARER = 0.05
"""A grouping is clearer than another if it is farther apart by more than this share."""


class FoundGroups(NamedTuple):
    """Groups that were found by what `by` names, in an embedding; None for those that were given."""

    groups: Groups
    by: str
    embedding: Embedded | None = None


def given_groups(groups: Groups, hosts: int) -> FoundGroups:
    """Groups that a user gave. Raises InputError unless they have every host once."""
    listed = Counter(host for group in groups for host in group)
    wrong = [f"no host {host}" for host in range(hosts) if not listed[host]]
    wrong += [f"host {host} twice" for host in sorted(listed) if listed[host] > 1]
    wrong += [f"host {host}" for host in sorted(listed) if not 0 <= host < hosts]
    if wrong or not all(groups):
        found = (wrong or ["no host in one"])[0]
        raise InputError(f"found groups with {found}, expected each of {hosts} hosts in one group")
    return FoundGroups(tuple(sorted(tuple(sorted(group)) for group in groups)), "given")


def near_grouping(problem: AggregationProblem, count: int | None, *, elasticity: float, seed: int) -> FoundGroups:
    """The clearest groups of near hosts, `count` of them if that is given: by latencies and by rates, in several
    numbers, the fewest groups of those that are about as far apart as any in the time that a piece takes.

    Hosts that are all alike have groups too, which are chance; their uplinks carry what their NICs do.
    Raises InputError for a count that the hosts do not allow.
    """
    hosts = len(problem.hosts)
    if count is not None and not 1 <= count <= hosts:
        raise InputError(f"found {count} groups of {hosts} hosts, expected 1 to {hosts}")
    latency, rates = np.array(problem.latency_ns, dtype=float), without_nics(problem.ns_per_MiB)
    times = (latency + rates * (problem.chunk_bytes / MEBIBYTE)).tolist()
    found: list[tuple[float, FoundGroups]] = []
    for by, costs in (("latency", latency.tolist()), ("rates", rates.tolist())):
        if hosts < 3 or len({cost for row in costs for cost in row}) <= 2:
            continue  # all pairs alike
        numbers = group_numbers(costs) if count is None else [count]
        for groups, points in divisions(costs, numbers, elasticity=elasticity, seed=seed):
            found.append((separation(times, groups), FoundGroups(groups, by, points)))
    if not found:
        groups = clustered([(float(host),) for host in range(hosts)], count or group_count(hosts), seed=seed).groups
        return FoundGroups(groups, "equal costs")
    farthest = max(apart for apart, _ in found)
    clear = [grouping for apart, grouping in found if apart >= farthest - CLEARER * abs(farthest)]
    return min(clear, key=lambda grouping: len(grouping.groups))


def without_nics(ns_per_MiB: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """The costs of pairs as if all NICs were the usual one: a slow host is far from all others, which says nothing
    about where it stands."""
    costs, nics = np.array(ns_per_MiB, dtype=float), np.array(nics_ns(ns_per_MiB), dtype=float)
    slower = np.maximum(np.maximum(nics[:, None], nics[None, :]), 1)
    relative: NDArray[np.float64] = costs / slower * np.median(nics)
    return relative


def group_numbers(costs: Matrix) -> list[int]:
    """Numbers of groups: where a gap in the costs is, the square root rule's and its neighbours, and two."""
    hosts = len(costs)
    heights = np.maximum(linkage(squareform(np.array(costs, dtype=float)), "average")[:, 2], 1e-9)
    jumps = heights[1:] / heights[:-1]
    gap = hosts - 1 - int(jumps.argmax()) if len(jumps) else 2
    rule = group_count(hosts)
    wanted = dict.fromkeys([gap, rule, rule - 1, rule + 1, 2])
    return [number for number in wanted if 2 <= number <= max(2, hosts // 2)]
