"""Costs of the CPU runtime from the times of probe programs; `simulate_cpu` predicts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from treadle.codegen.collective.simulate_cpu import simulate_cpu
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.transports import CpuTransport, MessageCost
from treadle.probe.cost_fit import CostFit, CostRange, fit_costs
from treadle.probe.cpu_programs import ProbeRun

RANGES: dict[str, CostRange] = {
    "call_us": CostRange(20.0),
    "step_us": CostRange(0.2),
    "copy_us_per_MB": CostRange(20.0),
    "sum_us_per_MB": CostRange(25.0),
    "uncached": CostRange(5.0, 1.0, 20.0),
    "cache_bytes": CostRange(32.0 * 2**20, 2.0**20, 2.0**30),
    "memory.message_us": CostRange(1.0),
    "memory.copy_us_per_MB": CostRange(60.0),
    "memory.sum_us_per_MB": CostRange(70.0),
    "memory.latency_us": CostRange(10.0),
    "tcp.message_us": CostRange(5.0),
    "tcp.copy_us_per_MB": CostRange(200.0),
    "tcp.sum_us_per_MB": CostRange(250.0),
    "tcp.latency_us": CostRange(30.0),
    "link_efficiency": CostRange(0.95, 0.3, 1.0),
}
"""Costs in the order in which they are printed."""
MESSAGE = ("message_us", "copy_us_per_MB", "sum_us_per_MB", "latency_us")


def fit_cpu(
    hardware: Hardware,
    runs: Sequence[ProbeRun],
    times_us: Sequence[Sequence[float]],
    cores: int,
    cores_of: Literal["host", "machine"] = "host",
) -> CostFit:
    """Fit the costs of the ranks of `hardware` to `times_us`, by run the time of each call. Each host has `cores`, or
    all hosts of a lab share them.

    What no run shows keeps what the profile says. Raises InputError when a run has no positive time.
    """
    base = replace(_start(hardware), cores=cores, cores_of=cores_of)

    def predicted(values: Mapping[str, float]) -> list[float]:
        machine = _with(hardware, base, values)
        return [simulate_cpu(run.program, machine, run.total_bytes).time_us for run in runs]

    ranges = {name: RANGES[name] for name in _separable(runs)}
    values, costs, rows = fit_costs(ranges, runs, times_us, predicted)
    return CostFit(_with(hardware, base, values), costs, rows)


def _separable(runs: Sequence[ProbeRun]) -> list[str]:
    """The costs that these runs show."""
    paths = {"memory": "near", "tcp": "far"}
    shown = {path for path, word in paths.items() if any(run.name.endswith(word) for run in runs)}
    names = [name for name in RANGES if "." not in name or name.partition(".")[0] in shown]
    return [name for name in names if name != "link_efficiency" or "tcp" in shown]


def _start(hardware: Hardware) -> CpuTransport:
    """What the profile says, else the values at which the search starts."""
    known = hardware.transports.cpu
    if known is not None:
        return known
    usual = {name: each.usual for name, each in RANGES.items()}
    near, far = (MessageCost(**{name: usual[f"{path}.{name}"] for name in MESSAGE}) for path in ("memory", "tcp"))
    return CpuTransport(
        call_us=usual["call_us"],
        step_us=usual["step_us"],
        copy_us_per_MB=usual["copy_us_per_MB"],
        sum_us_per_MB=usual["sum_us_per_MB"],
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
