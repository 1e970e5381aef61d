"""Which hosts are near each other, from what was measured between them: an embedding, then groups of similar size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Embedded(NamedTuple):
    """Points of hosts, with heights if there are any, so that distance ** alpha + both heights is close to what was
    measured, relative to its mean; `loss` is the sum of squares of what is left."""

    points: tuple[tuple[float, ...], ...]
    heights: tuple[float, ...]
    alpha: float
    loss: float


class NearHosts(NamedTuple):
    """Groups, each ascending, ordered by their first host; and the embedding they were found in."""

    groups: tuple[tuple[int, ...], ...]
    embedded: Embedded


def near_hosts(
    costs: Sequence[Sequence[int]], groups: int | None = None, *, elasticity: float = 2.0, seed: int = 0
) -> NearHosts:
    """Hosts grouped by a symmetric matrix of costs (PLink, "ProbeEmbed").

    `groups`: how many; else the number that minimises n / k + k. No group is smaller than floor(n / (k * elasticity)).
    Deterministic in `seed`.
    """
    raise NotImplementedError
