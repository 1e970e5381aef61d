"""Groups of near hosts, and how many there are: those that are furthest apart for their size, or one if none stand out.

PLink takes as many groups as minimise what a global master receives, whatever the hosts. Racks show as a gap: groups
merged one by one, nearest first by their mean costs, suddenly cost much more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from treadle.planner.machine.clustering import clustered, group_count
from treadle.planner.machine.near_hosts import Embedded, NearHosts, divisions, separation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Costs = NDArray[np.float64]

CLEAR, MARGIN, SHUFFLES = 0.4, 0.05, 3
"""Groups this far apart are taken as they are. Others must be further apart, by MARGIN, than the groups that are found
in SHUFFLES matrices of the same costs dealt out at random, in which near hosts are chance."""
ALL_NUMBERS = 64
"""Up to this number of hosts every number of groups is tried, up to twice the square root of the hosts. With more
hosts, groups by chance are less than MARGIN apart, and dealing out costs would take minutes."""

Groups = tuple[tuple[int, ...], ...]
Matrix = Sequence[Sequence[float]]


class HostGroups(NamedTuple):
    """Groups, each ascending, ordered by their first host; the costs they were found by, and the embedding of these,
    None for one group."""

    groups: Groups
    by: str = "equal costs"
    embedded: Embedded | None = None


def host_groups(
    latency_ns: Matrix | None,
    ns_per_MiB: Matrix | None,
    *,
    number: int | None = None,
    elasticity: float = 2.0,
    seed: int = 0,
) -> HostGroups:
    """The groups of near hosts by symmetric costs, at least one kind; one group where the hosts are alike, or as many
    as `number` says, by chance if need be.

    Rates come first, since hosts of a group share what carries bytes to the others, then both kinds together, then
    latencies: the first that show clear groups, else the clearest. Of several numbers of groups the one with the best
    mean silhouette counts (Rousseeuw, "Silhouettes"). No group is smaller than floor(n / (k * elasticity)).
    Deterministic in `seed`.
    """
    count, kinds = len(latency_ns or ns_per_MiB or ()), _kinds(latency_ns, ns_per_MiB)
    if number is not None and not kinds:
        return HostGroups(clustered([(float(host),) for host in range(count)], number, seed=seed).groups)
    best, found = -2.0 if number else 0.0, HostGroups((tuple(range(count)),))
    for by, costs in kinds.items():
        apart, near = _furthest(costs, [number] if number else group_numbers(costs), elasticity, seed)
        if apart > best and (number or apart >= CLEAR or apart > _by_chance(costs, near, elasticity, seed) + MARGIN):
            best, found = apart, HostGroups(near.groups, by, near.embedded)
        if best >= CLEAR:
            break
    return found


def group_numbers(costs: Matrix | Costs) -> list[int]:
    """Numbers of groups to try. Of many hosts: two, where a gap in the costs is, and the square root rule's with its
    neighbours."""
    import numpy as np
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    hosts = len(costs)
    most = max(2, min(hosts // 2, 2 * int(hosts**0.5)))
    if hosts <= ALL_NUMBERS:
        return list(range(2, most + 1))
    heights = np.maximum(linkage(squareform(np.asarray(costs, dtype=float)), "average")[:, 2], 1e-9)
    gap, rule = hosts - 1 - int((heights[1:] / heights[:-1]).argmax()), group_count(hosts)
    return sorted(number for number in {2, gap, rule - 1, rule, rule + 1} if 2 <= number <= hosts // 2)


def _kinds(latency_ns: Matrix | None, ns_per_MiB: Matrix | None) -> dict[str, Costs]:
    """The costs that differ between pairs, by what they are. Both together are each divided by its median: what
    differs more says more about who is near."""
    import numpy as np

    found: dict[str, Costs] = {}
    if ns_per_MiB is not None and len(ns_per_MiB) > 2:
        found["rates"] = _without_nics(np.array(ns_per_MiB, dtype=float))
    if latency_ns is not None and len(latency_ns) > 2:
        found["latency"] = np.array(latency_ns, dtype=float)
    found = {by: costs for by, costs in found.items() if np.ptp(_between(costs))}
    if len(found) < 2:
        return found
    rates, latency = (each / max(1.0, np.median(_between(each))) for each in found.values())
    return {"rates": found["rates"], "both": rates + latency, "latency": found["latency"]}


def _without_nics(costs: Costs) -> Costs:
    """The costs of pairs as if all NICs were the usual one: a slow host is far from all others, which says nothing
    about where it stands."""
    import numpy as np

    nics = np.maximum((costs + np.diag(np.full(len(costs), np.inf))).min(1), 1)
    relative: Costs = costs / np.maximum(nics[:, None], nics[None, :]) * np.median(nics)
    return relative


def _between(costs: Costs) -> Costs:
    """The costs of all pairs in a row."""
    import numpy as np

    found: Costs = costs[np.triu_indices(len(costs), 1)]
    return found


def _furthest(costs: Costs, numbers: Sequence[int], elasticity: float, seed: int) -> tuple[float, NearHosts]:
    rows = costs.tolist()
    found = divisions(rows, numbers, elasticity=elasticity, seed=seed)
    return max(((separation(rows, near.groups), near) for near in found), key=lambda each: each[0])


def _by_chance(costs: Costs, near: NearHosts, elasticity: float, seed: int) -> float:
    """How far apart as many groups are that are found by chance."""
    import numpy as np

    if len(costs) > ALL_NUMBERS:
        return MARGIN
    chance, upper = np.random.default_rng(seed), np.triu_indices(len(costs), 1)
    most = 0.0
    for _ in range(SHUFFLES):
        dealt = np.zeros_like(costs)
        dealt[upper] = chance.permutation(costs[upper])
        most = max(most, _furthest(dealt + dealt.T, [len(near.groups)], elasticity, seed)[0])
    return most
