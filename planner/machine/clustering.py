"""Constrained k-means: groups of near points, none smaller than a least size (PLink, "ProbeEmbed").

The assignment to centres is a flow of least cost: each point sends one unit to a group at its squared distance from the
centre, and each group receives at least the least size. Where every point's nearest centre keeps that size already, it
is the flow of least cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from treadle.planner.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CANDIDATES, MOST_ROUNDS, PRECISION = 20, 100, 2**30
ALIKE = 1.5
"""Clusterings whose inertia is this many times the least one or more are ends of a bad start."""


class Clustering(NamedTuple):
    """Groups, each ascending, ordered by their first point; `inertia` is the sum of squared distances of the points
    from the mean of their group."""

    groups: tuple[tuple[int, ...], ...]
    inertia: float

    @property
    def diversity(self) -> int:
        """Size of the largest group less that of the smallest."""
        sizes = [len(group) for group in self.groups]
        return max(sizes) - min(sizes)


def group_count(points: int) -> int:
    """The k that minimises points / k + k, what a global master receives; the smallest of several."""
    return min(range(1, points + 1), key=lambda k: (points + k * k) / k) if points else 0


def least_size(points: int, groups: int, elasticity: float) -> int:
    """No group is smaller. elasticity: 1 for equal sizes, up to 2."""
    return max(1, int(points / (groups * elasticity)))


def clustered(points: Sequence[Sequence[float]], groups: int, *, elasticity: float = 2.0, seed: int = 0) -> Clustering:
    """The clustering with the least diversity of sizes, then the least inertia, of many k-means++ starts.

    points: n rows of coordinates. Raises InputError unless 1 <= groups <= n and 1 <= elasticity <= 2. Deterministic in
    `seed`.
    """
    import numpy as np

    if not 1 <= groups <= len(points):
        raise InputError(f"found {groups} groups of {len(points)} hosts, expected 1 to {len(points)}")
    if not 1 <= elasticity <= 2:
        raise InputError(f"found an elasticity of {elasticity:g}, expected 1 to 2")
    places, least = np.asarray(points, dtype=float), least_size(len(points), groups, elasticity)
    found = [
        converged(places, _starts(places, groups, np.random.default_rng([seed, start])), least)
        for start in range(CANDIDATES if groups > 1 else 1)
    ]
    bar = min(each.inertia for each in found) * ALIKE
    return min((each for each in found if each.inertia <= bar), key=lambda each: (each.diversity, each.inertia, each))


def converged(places: NDArray[np.float64], centres: NDArray[np.float64], least: int) -> Clustering:
    """Assignment and centres in turn, until the inertia falls no more."""
    import numpy as np

    inertia, labels = float("inf"), np.zeros(len(places), dtype=int)
    for _ in range(MOST_ROUNDS):
        chosen = assigned(((places[:, None, :] - centres[None, :, :]) ** 2).sum(2), least)
        centres = np.array([places[chosen == group].mean(0) for group in range(len(centres))])
        now = float(((places - centres[chosen]) ** 2).sum())
        if now >= inertia * (1 - 1e-12):
            break
        inertia, labels = now, chosen
    groups = (tuple(np.flatnonzero(labels == group).tolist()) for group in range(len(centres)))
    return Clustering(tuple(sorted(groups)), inertia)


def assigned(costs: NDArray[np.float64], least: int) -> NDArray[np.int64]:
    """The group of each point, at the least sum of costs[point][group] with `least` points in each group."""
    import numpy as np

    from treadle.planner.solver.min_cost_flow import min_cost_flow

    n, k = costs.shape
    nearest: NDArray[np.int64] = costs.argmin(1)
    if np.bincount(nearest, minlength=k).min() >= least:
        return nearest
    whole = np.rint(costs * (PRECISION / max(costs.max(), 1e-300))).astype(np.int64)
    points, groups, sink = np.arange(n), n + np.arange(k), n + k
    arcs = np.concatenate(
        [
            np.stack([points.repeat(k), np.tile(groups, n), np.ones(n * k, dtype=np.int64), whole.ravel()], 1),
            np.stack([groups, np.full(k, sink), np.full(k, n - k * least), np.zeros(k, dtype=np.int64)], 1),
        ]
    )
    flows = min_cost_flow(arcs, [*[1] * n, *[-least] * k, least * k - n])
    found: NDArray[np.int64] = flows[: n * k].reshape(n, k).argmax(1)
    return found


def _starts(places: NDArray[np.float64], groups: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Centres, each a point drawn with a probability in proportion to its squared distance from those before, the best
    of a few draws (k-means++)."""
    import numpy as np

    chosen = [int(random.integers(len(places)))]
    nearest = ((places - places[chosen[0]]) ** 2).sum(1)
    while len(chosen) < groups:
        weights = nearest if nearest.any() else np.isin(np.arange(len(places)), chosen, invert=True)
        drawn = random.choice(len(places), 2 + int(np.log(groups)), p=weights / weights.sum())
        left = np.minimum(nearest, ((places[drawn][:, None, :] - places[None, :, :]) ** 2).sum(2))
        best = int(left.sum(1).argmin())
        chosen.append(int(drawn[best]))
        nearest = left[best]
    return places[chosen]
