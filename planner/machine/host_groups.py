"""How many groups of near hosts there are, and which: those that are furthest apart for their size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median

from treadle.planner.machine.host_costs import HostCosts, Rows
from treadle.planner.machine.near_hosts import near_hosts, separation

DISTINCT = 0.25
"""Groups with a lower mean silhouette may be chance (Rousseeuw, "Silhouettes"): all hosts are one group then."""
SCALE = 1000


def host_groups(costs: HostCosts, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    """The groups of near hosts, each ascending, ordered by their first host; one group where the hosts are alike.

    Of all numbers of groups from 2 to twice the square root of the hosts, by latencies, by rates and by both, that with
    the best mean silhouette counts: latencies of hosts that are equally far, or rates that nothing limits, say nothing.
    Deterministic in `seed`.
    """
    alone = [] if costs.ns_per_MiB is None else [costs.latency_ns, costs.ns_per_MiB]
    return _groups(len(costs.names), [near_costs(costs), *alone], seed)


def rate_groups(costs: HostCosts, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    """The same by rates only: hosts of a group share what carries bytes to the others. One group without rates."""
    return _groups(len(costs.names), [] if costs.ns_per_MiB is None else [costs.ns_per_MiB], seed)


def _groups(count: int, measured: Sequence[Rows], seed: int) -> tuple[tuple[int, ...], ...]:
    whole: tuple[tuple[int, ...], ...] = (tuple(range(count)),)
    best, found = DISTINCT, whole
    for distances in measured:
        for groups in range(2, min(count // 2, 2 * int(count**0.5)) + 1):
            candidate = near_hosts(distances, groups, seed=seed).groups
            if (apart := separation(distances, candidate)) > best:
                best, found = apart, candidate
    return found


def near_costs(costs: HostCosts) -> Rows:
    """Latency and time of a byte between hosts, each divided by its median, in thousandths: what differs more between
    pairs says more about who is near."""
    parts = [costs.latency_ns, *([costs.ns_per_MiB] if costs.ns_per_MiB else [])]
    usual = [_median(part) for part in parts]
    hosts = range(len(costs.names))
    return tuple(
        tuple(sum(SCALE * part[i][j] // middle for part, middle in zip(parts, usual, strict=True)) for j in hosts)
        for i in hosts
    )


def _median(rows: Sequence[Sequence[int]]) -> int:
    pairs = [rows[i][j] for i, j in combinations(range(len(rows)), 2)]
    return max(1, round(median(pairs))) if pairs else 1
