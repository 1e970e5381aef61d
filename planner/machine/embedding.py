"""Hosts as points in few dimensions whose distances match what was measured between them (PLink, "ProbeEmbed").

Minimises the sum over pairs of (|v_i - v_j|^alpha + h_i + h_j - p_ij)^2, where p are the costs relative to their mean,
over the points v and, with heights, over h >= 0. Few dimensions cannot follow the noise of single pairs; alpha above 1
brings large costs, which other traffic raises, closer together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STEPS, RATE, DECAY = 1500, 0.05, 0.5
"""Adam's steps: how many, the first one's length, and after which share of them it falls to 0 linearly."""
MOST_STARTS, ENTRIES = 10, 2**14
"""Random starts: as many as make matrices of this many entries together. One more begins at the classical solution."""
LARGE, FEWER_STEPS = 2**14, 200
"""Matrices of more entries take fewer steps, from the classical solution only."""
ROOT = 1e-9


class Embedded(NamedTuple):
    """Points of hosts, with heights if there are any, so that distance ** alpha + both heights is close to what was
    measured, relative to its mean; `loss` is the sum of squares of what is left."""

    points: tuple[tuple[float, ...], ...]
    heights: tuple[float, ...]
    alpha: float
    loss: float


def embedded(
    costs: Sequence[Sequence[float]],
    *,
    alpha: float = 2.0,
    dimensions: int = 3,
    heights: bool = False,
    starts: int | None = None,
    seed: int = 0,
) -> Embedded:
    """The embedding with the least loss of several random starts, by Adam.

    costs: n rows of n numbers >= 0, symmetric with zeros on the diagonal. Hosts fewer than dimensions + 1 get fewer
    dimensions. Points are rounded to 9 digits after the point. Deterministic in `seed`.
    """
    import numpy as np

    n = len(costs)
    if n < 2:
        return Embedded(((0.0,),) * n, (0.0,) * n if heights else (), alpha, 0.0)
    measured = np.asarray(costs, dtype=float)
    mean = measured.sum() / (n * (n - 1))
    target = measured / mean if mean else measured
    large = n * n > LARGE
    count = starts or (0 if large else min(MOST_STARTS, ENTRIES // (n * n)))
    random = np.random.default_rng(seed)
    points = random.normal(size=(count + 1, n, min(dimensions, n - 1))) * 0.5
    points[0] = _classical(target ** (1 / alpha), points.shape[2])
    raised = np.zeros((count + 1, n))
    _minimise(points, raised, target, alpha, heights, FEWER_STEPS if large else STEPS)
    points, raised = points.round(9), raised.round(9)
    left = _squares(points) ** (alpha / 2) + raised[:, :, None] + raised[:, None, :] - target
    left[:, np.arange(n), np.arange(n)] = 0
    losses = (left * left).sum((1, 2)) / 2
    best = int(losses.argmin())
    return Embedded(
        tuple(tuple(row) for row in points[best].tolist()),
        tuple(raised[best].tolist()) if heights else (),
        alpha,
        float(losses[best]),
    )


def _classical(distances: NDArray[np.float64], dimensions: int) -> NDArray[np.float64]:
    """The points of classical scaling: the largest eigenvalues of the centred squares of distances."""
    import numpy as np
    from scipy.linalg import eigh

    squares, n = distances**2, len(distances)
    means = squares.mean(0)
    centred = (means[:, None] + means[None, :] - means.mean() - squares) / 2
    values, vectors = eigh(centred, subset_by_index=(n - dimensions, n - 1))
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0)))


def _squares(points: NDArray[np.float64], out: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Squared distances of all pairs, of each start, into `out`, if given: new matrices of many hosts take longer to
    come by than to fill."""
    import numpy as np

    norms = (points * points).sum(2)
    found: NDArray[np.float64] = np.matmul(-2 * points, points.transpose(0, 2, 1), out=out)
    found += norms[:, :, None]
    found += norms[:, None, :]
    np.maximum(found, 0, out=found)
    return found


def _minimise(
    points: NDArray[np.float64],
    raised: NDArray[np.float64],
    target: NDArray[np.float64],
    alpha: float,
    heights: bool,
    steps: int,
) -> None:
    """Adam's steps, in place."""
    import numpy as np

    diagonal = np.arange(len(target))
    moments = [(np.zeros_like(each), np.zeros_like(each)) for each in (points, raised)]
    buffer = np.empty((len(points), *target.shape))
    for step in range(1, steps + 1):
        left, slope = _squares(points, buffer), 4.0
        if alpha != 2:
            chain = (left + ROOT) ** (alpha / 2 - 1)
            left, slope = (left + ROOT) * chain, 2 * alpha
        left -= target
        if heights:
            left += raised[:, :, None]
            left += raised[:, None, :]
        left[:, diagonal, diagonal] = 0
        lifted = 2 * left.sum(2) if heights else None
        if alpha != 2:
            left *= chain
        moved = slope * (left.sum(2)[:, :, None] * points - left @ points)
        rate = RATE * min(1.0, (steps + 1 - step) / (steps * (1 - DECAY)))
        for each, gradient, (first, second) in zip((points, raised), (moved, lifted), moments, strict=True):
            if gradient is not None:
                first += 0.1 * (gradient - first)
                second += 0.001 * (gradient * gradient - second)
                each -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-12)
        np.maximum(raised, 0, out=raised)
