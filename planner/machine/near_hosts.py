"""Which hosts are near each other, from what was measured between them: an embedding, then groups of similar size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from treadle.planner.machine.clustering import clustered, group_count
from treadle.planner.machine.embedding import Embedded, embedded

__all__ = ["Embedded", "NearHosts", "near_hosts"]


ALPHAS = (2.0, 1.0)
"""PLink has better groups by 2, which compacts noise, while 1 sees more of many groups; which one suits the costs shows
in how far the groups are apart."""


class NearHosts(NamedTuple):
    """Groups, each ascending, ordered by their first host; and the embedding they were found in."""

    groups: tuple[tuple[int, ...], ...]
    embedded: Embedded


def near_hosts(
    costs: Sequence[Sequence[float]], groups: int | None = None, *, elasticity: float = 2.0, seed: int = 0
) -> NearHosts:
    """Hosts grouped by a symmetric matrix of costs (PLink, "ProbeEmbed").

    `groups`: how many; else the number that minimises n / k + k. No group is smaller than floor(n / (k * elasticity)).
    Deterministic in `seed`.

    Hosts that are all alike get groups too, of similar sizes by chance. Two levels over these cost a flat network a
    little latency and no bytes; `separation` says whether groups are more than chance.
    """
    found = divisions(costs, [groups or group_count(len(costs))], elasticity=elasticity, seed=seed)
    return max(found, key=lambda each: separation(costs, each.groups))


def divisions(
    costs: Sequence[Sequence[float]], numbers: Sequence[int], *, elasticity: float = 2.0, seed: int = 0
) -> Iterator[NearHosts]:
    """The hosts in each of `numbers` of groups, by each of ALPHAS."""
    for alpha in ALPHAS:
        found = embedded(costs, alpha=alpha, dimensions=dimensions(max(numbers)), seed=seed)
        for number in numbers:
            yield NearHosts(clustered(found.points, number, elasticity=elasticity, seed=seed).groups, found)


def dimensions(groups: int) -> int:
    """Dimensions of the embedding: as many as let all groups have one distance, as racks below one switch have, but
    3 to 8, since few denoise more."""
    return min(8, max(3, groups - 1))


def separation(costs: Sequence[Sequence[float]], groups: Sequence[Sequence[int]]) -> float:
    """How much cheaper hosts reach their own group than the nearest other one: the mean silhouette, -1 to 1, of the
    costs as they were measured (Rousseeuw, Silhouettes). 0 for one group; below 0.25 the groups may be chance."""
    import numpy as np

    if len(groups) < 2:
        return 0.0
    matrix = np.asarray(costs, dtype=float)
    widths = []
    for group in groups:
        for host in group:
            own = matrix[host, list(group)].sum() / max(1, len(group) - 1)
            other = min(matrix[host, list(each)].mean() for each in groups if each is not group)
            widths.append((other - own) / max(own, other) if len(group) > 1 and max(own, other) else 0.0)
    return float(np.mean(widths))
