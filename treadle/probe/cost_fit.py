"""Costs of a runtime from the times of probe programs.

    minimise    sum over runs of rho(log(predicted / measured)) + sum over costs of rho(USUAL log(cost / usual cost))

over the logarithms of the costs, with rho(x) about x^2 for runs that are off by less than SOFT and about 2 SOFT |x|
beyond, so that single disturbed runs count less. The second sum keeps costs that the runs hardly show, next to slow
links or noise, near usual ones. A measured time is the median over repeats of the slowest rank's. Intervals are those
of the linear model at the optimum, with the variance that its residuals leave: they hold noise and what the model does
not describe.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import t as student

from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.probe.cpu_programs import ProbeRun

CONFIDENCE = 0.95
USUAL = 0.1
"""A cost ten times the usual one weighs as much as a run that is off by a quarter."""
SOFT = 0.2
DOUBTFUL, USABLE = 1 / 3, 1.0
"""Errors of a fit beyond which a note warns, and beyond which it predicts nothing. Two idle cores that run four
processes are fitted within 0.3."""
SMALLEST, LARGEST = 1e-3, 1e5
"""Limits of costs in us that have no others."""


class CostRange(NamedTuple):
    """The usual value of a cost, where the search starts, and its limits."""

    usual: float
    least: float = SMALLEST
    most: float = LARGEST


@dataclass(frozen=True)
class FittedCost:
    """A fitted cost with its 95 % interval."""

    value: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class RunResidual:
    """A run: bytes of a message or buffer, measured and fitted us."""

    name: str
    bytes: int
    measured_us: float
    fitted_us: float

    @property
    def residual(self) -> float:
        return self.fitted_us / self.measured_us - 1


@dataclass(frozen=True)
class CostFit:
    """The profile with its costs in `transports`, and how well they explain each run of the `runtime`."""

    hardware: Hardware
    costs: dict[str, FittedCost]
    rows: tuple[RunResidual, ...]
    runtime: str = "the CPU runtime"

    @property
    def error(self) -> float:
        """Root mean square of the relative errors."""
        return math.sqrt(statistics.fmean(row.residual**2 for row in self.rows))

    @property
    def usable(self) -> bool:
        """Whether these costs predict anything."""
        return self.error <= USABLE

    @property
    def doubt(self) -> str:
        """What makes these costs doubtful, empty where nothing does."""
        if self.error <= DOUBTFUL:
            return ""
        return f"the fit of {self.runtime}'s costs is off by {self.error:.0%}, as on a busy machine"


def fit_costs(
    ranges: Mapping[str, CostRange],
    runs: Sequence[ProbeRun],
    times_us: Sequence[Sequence[float]],
    predicted: Callable[[Mapping[str, float]], list[float]],
) -> tuple[dict[str, float], dict[str, FittedCost], tuple[RunResidual, ...]]:
    """Values of the costs, the same with intervals, and the residuals. `predicted` gives the us of each run.

    Raises InputError when a run has no positive time.
    """
    measured = [statistics.median(each) if each else 0.0 for each in times_us]
    if not measured or min(measured) <= 0:
        raise InputError("found a run without positive times, expected microseconds", where="<timings>")
    names = list(ranges)
    usual, low, high = np.log([[each.usual, each.least, each.most] for each in ranges.values()]).T

    def residuals(logs: np.ndarray) -> np.ndarray:
        found = predicted(dict(zip(names, np.exp(logs), strict=True)))
        return np.concatenate((np.log(np.array(found) / np.array(measured)), (logs - usual) * USUAL))

    start = np.clip(usual, low + 1e-6, high - 1e-6)
    solved = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=SOFT, diff_step=[1e-4])
    values = {name: rounded(math.exp(log)) for name, log in zip(names, solved.x, strict=True)}
    spread = spread_of(np.asarray(solved.jac), residuals(solved.x))
    costs = {
        name: FittedCost(values[name], (rounded(values[name] / math.exp(each)), rounded(values[name] * math.exp(each))))
        for name, each in zip(names, spread, strict=True)
    }
    rows = tuple(
        RunResidual(run.name, run.bytes, rounded(time), rounded(fit))
        for run, time, fit in zip(runs, measured, predicted(values), strict=True)
    )
    return values, costs, rows


def spread_of(jacobian: np.ndarray, residuals: np.ndarray) -> list[float]:
    """Half of the interval of each logarithm; the widest where the runs do not determine it."""
    free = max(1, len(residuals) - jacobian.shape[1])
    variance = float(residuals @ residuals) / free
    variances = np.diag(np.linalg.pinv(jacobian.T @ jacobian)) * variance
    deviations = np.sqrt(np.where(variances > 0, variances, np.inf))
    widths = student.ppf((1 + CONFIDENCE) / 2, free) * deviations
    return [min(float(width), math.log(1e3)) for width in widths]


def rounded(value: float) -> float:
    return float(f"{value:.4g}")
