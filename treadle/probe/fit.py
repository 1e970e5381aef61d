"""Alpha and beta of a link from timed sends (TACCL, section 5.3).

n chunks of s MB one after another take T_seq = n alpha + n s beta; issued at once they take T_bulk = alpha + n s beta.
Each setting (n, s, mode) is one row, its time the median over repeats:

    minimise    sum over rows of ((a alpha + b beta - T) / T)^2        with (a, b) = (n, n s) or (1, n s)
    subject to  alpha, beta >= 0

Rows are divided by T because timing noise grows with the time itself; otherwise the largest chunk alone would decide
alpha. Times that follow the model exactly give alpha and beta exactly, with or without the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from treadle.planner.errors import InputError
from treadle.probe.timing import SendTiming

CONFIDENCE = 0.95


@dataclass(frozen=True)
class LinkFit:
    """alpha in us, beta in us per MiB, with 95 % intervals; `residual` is the relative root mean square error."""

    alpha_us: float
    beta_us_per_MB: float
    residual: float
    alpha_interval: tuple[float, float]
    beta_interval: tuple[float, float]


def fit_link(timings: Sequence[SendTiming], resamples: int = 400, seed: int = 0) -> LinkFit:
    """Fit one link class; the intervals are percentiles over `resamples` bootstraps of the repeats.

    Raises InputError when a time is missing or not positive, or when the settings do not separate alpha from beta.
    """
    rows = np.array([timing.row for timing in timings], dtype=float).reshape(-1, 2)
    if any(not timing.times_us or min(timing.times_us) <= 0 for timing in timings):
        raise InputError("found a setting without positive times, expected microseconds", where="<timings>")
    if np.linalg.matrix_rank(rows) < 2:
        raise InputError(
            "found settings that do not separate alpha from beta, expected several sizes, or sequential and bulk sends",
            where="<timings>",
        )
    alpha, beta, residual = _solve(rows, np.array([np.median(timing.times_us) for timing in timings]))
    random = np.random.default_rng(seed)
    draws = [
        _solve(rows, np.array([_resampled_median(timing.times_us, random) for timing in timings]))[:2]
        for _ in range(resamples)
    ]
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(draws, [tail, 100 - tail], axis=0)
    return LinkFit(alpha, beta, residual, (float(low[0]), float(high[0])), (float(low[1]), float(high[1])))


def _solve(rows: np.ndarray, times: np.ndarray) -> tuple[float, float, float]:
    (alpha, beta), _ = nnls(rows / times[:, None], np.ones(len(times)))
    residual = np.sqrt(np.mean((rows @ (alpha, beta) / times - 1) ** 2))
    return float(alpha), float(beta), float(residual)


def _resampled_median(times: tuple[float, ...], random: np.random.Generator) -> float:
    return float(np.median(random.choice(np.array(times), size=len(times))))
