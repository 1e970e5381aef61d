"""Costs of the runtime that executes a job's exchange are measured once for each machine and number of processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.planner import samples
from treadle.job import runtime_costs
from treadle.job.kept import CostCache
from treadle.job.runtime_costs import RuntimeCosts, with_runtime_costs
from treadle.planner.documents.hardware import Device, Hardware
from treadle.planner.documents.transports import CpuTransport, MessageCost, Transports

COSTS = CpuTransport(
    call_us=50.0,
    step_us=0.5,
    copy_us_per_MB=60.0,
    sum_us_per_MB=80.0,
    memory=MessageCost(message_us=2.0, copy_us_per_MB=60.0, sum_us_per_MB=70.0, latency_us=10.0),
    cores=2,
)

CPUS = Device(model="a CPU", kind="cpu", count=3)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The number of processes of each measurement that was made; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[int] = []

    def measured(hardware: Hardware, say: object) -> RuntimeCosts:
        made.append(hardware.ranks)
        doubt = {3: "off by 679%", 4: "off by 45%"}.get(hardware.ranks, "") if len(made) == 1 else ""
        return RuntimeCosts(COSTS, doubt, "679" not in doubt)

    monkeypatch.setattr(runtime_costs, "_measured", measured)
    return made


def test_the_runtime_is_measured_once_and_all_ranks_are_on_one_host(runs: list[int]) -> None:
    first = with_runtime_costs(samples.HARDWARE, print, CostCache(fresh=False))
    assert first.transports.cpu == replace(COSTS, hosts="one")
    assert "measured" in first.sources["transports.cpu"]
    assert with_runtime_costs(samples.HARDWARE, print, CostCache(fresh=False)) == first
    assert runs == [samples.HARDWARE.ranks]
    with_runtime_costs(samples.HARDWARE, print, CostCache(fresh=True))
    assert len(runs) == 2


@pytest.mark.parametrize(
    ("ranks", "measured", "told"),
    [
        (3, 2, ["  off by 679%; they are used this once and not kept"]),
        (4, 1, ["  off by 45%; --fresh-costs measures them again"] * 3),
    ],
)
def test_a_doubtful_fit_is_told_and_one_that_predicts_nothing_is_not_kept(
    ranks: int, measured: int, told: list[str], runs: list[int]
) -> None:
    said: list[str] = []
    cpus = replace(CPUS, count=ranks)
    machine = replace(samples.HARDWARE, nodes=1, network=None, links=(), nics=(), devices=(cpus,))
    for _ in range(3):
        with_runtime_costs(machine, said.append, CostCache(fresh=False))
    assert runs == [ranks] * measured
    assert said == told


def test_costs_that_the_profile_has_stay(runs: list[int]) -> None:
    given = replace(samples.HARDWARE, transports=Transports(cpu=COSTS))
    assert with_runtime_costs(given, print, CostCache(fresh=True)) is given
    assert not runs
