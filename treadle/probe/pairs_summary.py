"""What a cost matrix says in short: how its numbers spread, who is near, how that fits known positions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

from treadle.planner.documents.cost_matrix import CostMatrix
from treadle.planner.machine.host_costs import host_costs
from treadle.planner.machine.host_groups import host_groups
from treadle.planner.machine.paia import AffinityAccuracy, affinity_accuracy

Groups = tuple[tuple[int, ...], ...]


class PairsSummary(NamedTuple):
    """`latency_us` and `rates`, bytes per second, as least, median and largest; empty without any. `groups` of near
    hosts, one of all hosts if none was found or if pairs were not measured. `affinity` where every host has a
    position."""

    latency_us: tuple[float, ...]
    rates: tuple[float, ...]
    groups: Groups
    unmeasured: tuple[tuple[int, int], ...]
    affinity: AffinityAccuracy | None


def summarised(costs: CostMatrix) -> PairsSummary:
    """The summary; of two directions that differ, the larger counts."""
    us = costs.latency_us
    pairs = list(combinations(range(len(costs.hosts)), 2))
    unmeasured = tuple((i, j) for i, j in pairs if us[i][j] is None and us[j][i] is None)
    groups: Groups = (tuple(range(len(costs.hosts))),)
    affinity = None
    if not unmeasured and (costs.rates or any(map(any, us))):
        whole = host_costs(costs, "", "max")
        groups = host_groups(whole.latency_ns, whole.ns_per_MiB).groups
        if all(host.position for host in costs.hosts):
            affinity = affinity_accuracy(whole.latency_ns, [host.position for host in costs.hosts])
    measured = [cost for i, j in pairs for cost in (us[i][j], us[j][i]) if cost is not None]
    rates = [rate.bytes_per_second for rate in costs.rates]
    return PairsSummary(_spread(measured), _spread(rates), groups, unmeasured, affinity)


def _spread(values: Sequence[float]) -> tuple[float, ...]:
    return (min(values), median(values), max(values)) if values else ()
