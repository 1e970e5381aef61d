"""Costs of grouped messages from the times of probe programs; `simulate_rounds` predicts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from treadle.codegen.collective.simulate_rounds import simulate_rounds
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.transports import GroupedTransport
from treadle.probe.cost_fit import CostFit, CostRange, fit_costs
from treadle.probe.cpu_programs import ProbeRun

RANGES: dict[str, CostRange] = {
    "call_us": CostRange(5.0),
    "group_us": CostRange(10.0),
    "message_us": CostRange(0.3),
    "local_us": CostRange(3.0),
    "local_gbps": CostRange(500.0, 0.1, 1e5),
    "link_efficiency": CostRange(0.85, 0.01, 1.0),
}
"""Costs in the order in which they are printed."""


def fit_grouped(hardware: Hardware, runs: Sequence[ProbeRun], times_us: Sequence[Sequence[float]]) -> CostFit:
    """Fit the costs of messages between the ranks of `hardware` to `times_us`, by run the time of each call.

    Raises InputError when a run has no positive time, or when two ranks that exchange have no link.
    """

    def predicted(values: Mapping[str, float]) -> list[float]:
        machine = _with(hardware, values)
        return [simulate_rounds(run.program, machine, run.total_bytes).time_us for run in runs]

    values, costs, rows = fit_costs(RANGES, runs, times_us, predicted)
    return CostFit(_with(hardware, values), costs, rows, "NCCL")


def _with(hardware: Hardware, values: Mapping[str, float]) -> Hardware:
    return replace(hardware, transports=replace(hardware.transports, nccl=GroupedTransport(**values)))
