"""Times that follow the model give its costs again; what no run shows stays."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from msgspec.structs import replace

from treadle.codegen.collective import order
from treadle.codegen.collective.simulate_cpu import simulate_cpu
from treadle.planner.documents.hardware import Device, Hardware
from treadle.planner.documents.transports import CpuTransport, MessageCost, Transports
from treadle.planner.errors import InputError
from treadle.probe import cost_fit
from treadle.probe.cpu_fit import fit_cpu
from treadle.probe.cpu_programs import probe_runs

TRUTH = CpuTransport(
    call_us=30.0,
    step_us=0.8,
    copy_us_per_MB=15.0,
    sum_us_per_MB=22.0,
    uncached=4.0,
    cache_bytes=16 << 20,
    memory=MessageCost(message_us=1.5, copy_us_per_MB=70.0, sum_us_per_MB=95.0, latency_us=12.0),
    cores=2,
)
HOST = Hardware(version=1, name="host", nodes=1, devices=(Device(model="core", kind="cpu", count=2),))
SHOWN = ("call", "copy", "sum", "ping near", "swap near", "add near")
RUNS = [run for run in probe_runs([0, 0]) if run.name in SHOWN]


def times(noise: float) -> list[list[float]]:
    machine, dice = replace(HOST, transports=Transports(cpu=TRUTH)), random.Random(1)
    found = []
    for run in RUNS:
        time = simulate_cpu(run.program, machine, run.total_bytes).time_us
        found.append([time * (1 + dice.uniform(-noise, noise)) for _ in range(5)])
    return found


def test_the_costs_behind_the_times_are_found() -> None:
    fitted = fit_cpu(HOST, RUNS, times(0.0), cores=2)
    found = fitted.hardware.transports.cpu
    assert found is not None
    assert fitted.error < 0.02
    assert found.memory.copy_us_per_MB == pytest.approx(70, rel=0.05)
    assert found.memory.sum_us_per_MB == pytest.approx(95, rel=0.05)
    assert found.memory.latency_us == pytest.approx(12, rel=0.2)
    assert found.call_us == pytest.approx(30, rel=0.1)
    assert (found.tcp, found.cores, found.cores_of) == (None, 2, "host")


@pytest.mark.slow
def test_noise_is_in_the_intervals() -> None:
    fitted = fit_cpu(HOST, RUNS, times(0.1), cores=2)
    cost = fitted.costs["memory.copy_us_per_MB"]
    assert cost.interval[0] < 70 < cost.interval[1]
    assert fitted == fit_cpu(HOST, RUNS, times(0.1), cores=2)


def test_a_run_without_times_is_refused() -> None:
    with pytest.raises(InputError, match="found a run without positive times"):
        fit_cpu(HOST, RUNS, [[] for _ in RUNS], cores=2)


@pytest.mark.parametrize("homes", [[0, 0], [0, 1], [0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 2], [0, 0, 1]])
def test_every_probe_program_ends(homes: list[int]) -> None:
    runs = probe_runs(homes)
    assert all(not order.run(run.program, 2).stuck for run in runs)
    names = {run.name for run in runs}
    assert ("ping near" in names) == (len(set(homes)) < len(homes))
    assert ("ping far" in names) == (len(set(homes)) > 1)


def test_a_cost_that_no_run_determines_has_the_widest_interval() -> None:
    jacobian = np.array([[1.0, 0.0], [2.0, 0.0], [1.5, 0.0]])
    known, unknown = cost_fit.spread_of(jacobian, np.array([0.01, -0.01, 0.02]))
    assert known < unknown == pytest.approx(math.log(1e3))
