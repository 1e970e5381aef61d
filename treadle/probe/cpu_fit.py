"""Costs of the CPU runtime from the times of probe programs.

    minimise    sum over runs of rho(log(predicted / measured)) + sum over costs of rho(USUAL log(cost / usual cost))

over the logarithms of the costs, with rho(x) about x^2 for runs that are off by less than SOFT and about 2 SOFT |x|
beyond, so that single disturbed runs count less. The second sum keeps costs that the runs hardly show, next to slow
links or noise, near usual ones. `simulate_cpu` predicts, and a measured time is the median over repeats of the slowest
rank's. Intervals are those of the linear model at the optimum, with the variance that its residuals leave: they hold
noise and what the model does not describe.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec.structs import replace
from scipy.optimize import least_squares
from scipy.stats import t as student

from treadle.codegen.collective.simulate_cpu import simulate_cpu
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.transports import CpuTransport, MessageCost
from treadle.planner.errors import InputError
from treadle.probe.cpu_programs import ProbeRun

CONFIDENCE = 0.95
START: dict[str, float] = {
    "call_us": 20.0,
    "step_us": 0.2,
    "copy_us_per_MB": 20.0,
    "sum_us_per_MB": 25.0,
    "uncached": 5.0,
    "cache_bytes": 32.0 * 2**20,
    "memory.message_us": 1.0,
    "memory.copy_us_per_MB": 60.0,
    "memory.sum_us_per_MB": 70.0,
    "memory.latency_us": 10.0,
    "tcp.message_us": 5.0,
    "tcp.copy_us_per_MB": 200.0,
    "tcp.sum_us_per_MB": 250.0,
    "tcp.latency_us": 30.0,
    "link_efficiency": 0.95,
}
"""Costs in the order in which they are printed, and where the search starts."""
USUAL = 0.1
"""A cost ten times the usual one weighs as much as a run that is off by a quarter."""
SOFT = 0.2
MESSAGE = ("message_us", "copy_us_per_MB", "sum_us_per_MB", "latency_us")
LEAST: dict[str, float] = {"uncached": 1.0, "cache_bytes": 2.0**20, "link_efficiency": 0.3}
MOST: dict[str, float] = {"uncached": 20.0, "cache_bytes": 2.0**30, "link_efficiency": 1.0}
DOUBTFUL, USABLE = 1 / 3, 1.0
"""Errors of a fit beyond which a note warns, and beyond which it predicts nothing. Two idle cores that run four
processes are fitted within 0.3."""
SMALLEST, LARGEST = 1e-3, 1e5
"""Limits of all other costs, in us."""


@dataclass(frozen=True)
class CpuCost:
    """A fitted cost with its 95 % interval."""

    value: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class CpuResidual:
    """A run: bytes of a message or buffer, measured and fitted us."""

    name: str
    bytes: int
    measured_us: float
    fitted_us: float

    @property
    def residual(self) -> float:
        return self.fitted_us / self.measured_us - 1


@dataclass(frozen=True)
class CpuFit:
    """The profile with its costs in `transports.cpu`, and how well they explain each run."""

    hardware: Hardware
    costs: dict[str, CpuCost]
    rows: tuple[CpuResidual, ...]

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
        return f"the fit of the CPU runtime's costs is off by {self.error:.0%}, as on a busy machine"


def fit_cpu(
    hardware: Hardware,
    runs: Sequence[ProbeRun],
    times_us: Sequence[Sequence[float]],
    cores: int,
    cores_of: Literal["host", "machine"] = "host",
) -> CpuFit:
    """Fit the costs of the ranks of `hardware` to `times_us`, by run the time of each call. Each host has `cores`, or
    all hosts of a lab share them.

    What no run shows keeps what the profile says. Raises InputError when a run has no positive time.
    """
    measured = [statistics.median(each) if each else 0.0 for each in times_us]
    if not measured or min(measured) <= 0:
        raise InputError("found a run without positive times, expected microseconds", where="<timings>")
    base = replace(_start(hardware), cores=cores, cores_of=cores_of)
    names = _separable(runs)

    def predicted(values: Mapping[str, float]) -> list[float]:
        machine = _with(hardware, base, values)
        return [simulate_cpu(run.program, machine, run.total_bytes).time_us for run in runs]

    def residuals(logs: np.ndarray) -> np.ndarray:
        found = predicted(dict(zip(names, np.exp(logs), strict=True)))
        return np.concatenate((np.log(np.array(found) / np.array(measured)), (logs - usual) * USUAL))

    usual = np.log([START[name] for name in names])
    low = np.log([LEAST.get(name, SMALLEST) for name in names])
    high = np.log([MOST.get(name, LARGEST) for name in names])
    start = np.clip(np.log([START[name] for name in names]), low + 1e-6, high - 1e-6)
    solved = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=SOFT, diff_step=[1e-4])
    values = {name: _rounded(math.exp(log)) for name, log in zip(names, solved.x, strict=True)}
    spread = _spread(np.asarray(solved.jac), residuals(solved.x))
    costs = {
        name: CpuCost(values[name], (_rounded(values[name] / math.exp(each)), _rounded(values[name] * math.exp(each))))
        for name, each in zip(names, spread, strict=True)
    }
    rows = tuple(
        CpuResidual(run.name, run.bytes, _rounded(time), _rounded(fit))
        for run, time, fit in zip(runs, measured, predicted(values), strict=True)
    )
    return CpuFit(_with(hardware, base, values), costs, rows)


def _separable(runs: Sequence[ProbeRun]) -> list[str]:
    """The costs that these runs show."""
    paths = {"memory": "near", "tcp": "far"}
    shown = {path for path, word in paths.items() if any(run.name.endswith(word) for run in runs)}
    names = [name for name in START if "." not in name or name.partition(".")[0] in shown]
    return [name for name in names if name != "link_efficiency" or "tcp" in shown]


def _start(hardware: Hardware) -> CpuTransport:
    """What the profile says, else the values at which the search starts."""
    known = hardware.transports.cpu
    if known is not None:
        return known
    near, far = (MessageCost(**{name: START[f"{path}.{name}"] for name in MESSAGE}) for path in ("memory", "tcp"))
    return CpuTransport(
        call_us=START["call_us"],
        step_us=START["step_us"],
        copy_us_per_MB=START["copy_us_per_MB"],
        sum_us_per_MB=START["sum_us_per_MB"],
        memory=near,
        tcp=far,
        cores=1,
    )


def _with(hardware: Hardware, base: CpuTransport, values: Mapping[str, float]) -> Hardware:
    """The profile with these costs; what there is only one path for holds for the other one as well."""
    found = replace(base, **{n: v for n, v in values.items() if "." not in n and n != "cache_bytes"})
    if "cache_bytes" in values:
        found = replace(found, cache_bytes=round(values["cache_bytes"]))
    for path in ("memory", "tcp"):
        fitted = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{path}.")}
        if fitted:
            found = replace(found, **{path: MessageCost(**fitted)})
    if not any(name.startswith("tcp.") for name in values) and hardware.transports.cpu is None:
        found = replace(found, tcp=None)
    return replace(hardware, transports=replace(hardware.transports, cpu=found))


def _spread(jacobian: np.ndarray, residuals: np.ndarray) -> list[float]:
    """Half of the interval of each logarithm; the widest where the runs do not determine it."""
    free = max(1, len(residuals) - jacobian.shape[1])
    variance = float(residuals @ residuals) / free
    variances = np.diag(np.linalg.pinv(jacobian.T @ jacobian)) * variance
    deviations = np.sqrt(np.where(variances > 0, variances, np.inf))
    widths = student.ppf((1 + CONFIDENCE) / 2, free) * deviations
    return [min(float(width), math.log(1e3)) for width in widths]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
