"""Time over size as a curve of few points: a plateau, then lines of which none falls.

Neighbouring sizes are put into runs. The first run is a constant, each later one a line t = a + b x with b >= 0, fitted
by least squares of relative errors. Where two runs meet, the curve bends where their lines cross, if that is between
them; else a straight piece joins their ends. Among all choices of at most RUNS runs whose curve never falls,

    minimise    n log(mean over sizes of ((f - t) / t)^2 + NOISE^2) + p log n

with n sizes and p = 1 + 2 (runs - 1) parameters (Schwarz, Estimating the Dimension of a Model): a bend must explain
more than noise. Times of max(floor, a + b x) give floor, a and b exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np

from treadle.planner.documents.compression_costs import Point, interpolated
from treadle.planner.errors import InputError

RUNS = 4
NOISE = 0.02
"""Relative error of a median that says nothing."""


class SizeResidual(NamedTuple):
    """A size with its measured and fitted ns."""

    size: int
    measured_ns: float
    fitted_ns: int

    @property
    def residual(self) -> float:
        return self.fitted_ns / self.measured_ns - 1


@dataclass(frozen=True)
class CurveFit:
    """Points of a curve as documents hold them, and how far each size is from it."""

    points: tuple[Point, ...]
    rows: tuple[SizeResidual, ...]

    @property
    def error(self) -> float:
        """Root mean square of the relative errors."""
        return math.sqrt(sum(row.residual**2 for row in self.rows) / len(self.rows))


class _Line(NamedTuple):
    """a + b x."""

    a: float
    b: float

    def at(self, x: float) -> float:
        return self.a + self.b * x


def fit_curve(times: Mapping[int, float]) -> CurveFit:
    """Fit ns by size. Raises InputError without a time, or where one is not positive."""
    sizes = sorted(times)
    measured = [times[size] for size in sizes]
    if not sizes or min(measured) <= 0:
        raise InputError("found a size without a positive time, expected nanoseconds", where="<timings>")
    best = math.inf
    found: tuple[Point, ...] = ()
    lines: dict[tuple[int, int], _Line] = {}
    for runs in _runs(len(sizes)):
        for place, run in enumerate(runs):
            if run not in lines or place == 0:
                lines[run] = _fitted(sizes[slice(*run)], measured[slice(*run)], is_level=place == 0)
        points = _joined(sizes, [(run, lines[run]) for run in runs])
        if points is None:
            continue
        square = sum((interpolated(points, size) / time - 1) ** 2 for size, time in zip(sizes, measured, strict=True))
        parameters = 2 * len(runs) - 1
        score = len(sizes) * math.log(square / len(sizes) + NOISE**2) + parameters * math.log(len(sizes))
        if score < best - 1e-9:
            best, found = score, points
    rows = tuple(
        SizeResidual(size, time, interpolated(found, size)) for size, time in zip(sizes, measured, strict=True)
    )
    return CurveFit(found, rows)


def _runs(count: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Cuts of `count` sizes into runs, few runs first; of many sizes only the first may be of one."""
    least = 2 if count > 3 else 1
    for cuts in range(min(RUNS, count)):
        for places in combinations(range(1, count), cuts):
            runs = tuple(pairwise((0, *places, count)))
            if all(end - start >= least for start, end in runs[1:]):
                yield runs


def _fitted(sizes: Sequence[int], times: Sequence[float], *, is_level: bool) -> _Line:
    x, weights = np.array(sizes, dtype=float), 1 / np.array(times)
    level = float(weights.sum() / (weights**2).sum())
    if is_level:
        return _Line(level, 0.0)
    scale = x[-1]
    a, b = np.linalg.lstsq(np.stack((weights, weights * x / scale), axis=1), np.ones(len(x)), rcond=None)[0]
    return _Line(float(a), float(b / scale)) if b > 0 else _Line(level, 0.0)


def _joined(sizes: Sequence[int], runs: Sequence[tuple[tuple[int, int], _Line]]) -> tuple[Point, ...] | None:
    """Points of the curve; None where it would fall, or take no time."""
    found: list[tuple[float, float]] = []
    for ((_, end), line), (_, other) in pairwise(runs):
        low, high = sizes[end - 1], sizes[end]
        cross = (line.a - other.a) / (other.b - line.b) if other.b != line.b else -1.0
        joints = [(cross, other.at(cross))] if low <= cross <= high else [(low, line.at(low)), (high, other.at(high))]
        found += joints
    found.append((sizes[-1], runs[-1][1].at(sizes[-1])))
    if found[0][1] <= 0:
        return None
    points = {round(x): max(1, round(y)) for x, y in found}
    if any(one > other for one, other in pairwise(points.values())):
        return None
    return tuple(points.items())
