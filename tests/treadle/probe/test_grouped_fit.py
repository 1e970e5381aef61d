"""The costs of grouped messages: times that follow the model give them again, and real processes can be measured."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from treadle.codegen.collective.simulate_rounds import simulate_rounds
from treadle.planner.documents.hardware import Device, Hardware, Link, Network, Nic
from treadle.planner.documents.transports import GroupedTransport, Transports
from treadle.planner.errors import InputError
from treadle.probe.cpu_programs import grouped_runs
from treadle.probe.grouped_fit import fit_grouped
from treadle.probe.measure_nccl import measure_nccl

TRUTH = GroupedTransport(
    call_us=8.0, group_us=14.0, message_us=0.9, local_us=4.0, local_gbps=300.0, link_efficiency=0.7
)


def machine(nodes: int) -> Hardware:
    links = tuple(Link(src=src, dst=1 - src, kind="nvlink", alpha_us=0.7, beta_us_per_MB=4.0) for src in (0, 1))
    return Hardware(
        version=1,
        name="machine",
        nodes=nodes,
        devices=(Device(model="card", kind="gpu", count=2),),
        links=links,
        nics=(Nic(name="ib0", devices=(0,)), Nic(name="ib1", devices=(1,))),
        network=Network(kind="ib", alpha_us=3.0, beta_us_per_MB=40.0),
    )


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_costs_behind_the_times_are_found(nodes: int) -> None:
    hardware = machine(nodes)
    runs = grouped_runs([rank // 2 for rank in range(2 * nodes)])
    truth = replace(hardware, transports=Transports(nccl=TRUTH))
    times = [[simulate_rounds(each.program, truth, each.total_bytes).time_us] for each in runs]
    fitted = fit_grouped(hardware, runs, times)
    assert fitted.error < 0.02
    for name in ("call_us", "group_us", "message_us", "local_us", "local_gbps", "link_efficiency"):
        assert fitted.costs[name].value == pytest.approx(getattr(TRUTH, name), rel=0.1), name


@pytest.mark.slow
def test_real_processes_are_measured_over_gloo() -> None:
    fitted = measure_nccl(None, machine(1), "a test", "gloo")
    assert fitted is not None
    assert fitted.hardware.transports.nccl is not None
    assert fitted.hardware.sources["transports.nccl"].startswith("measured: `a test`")
    assert {"ping near", "copy", "many"} <= {row.name for row in fitted.rows}


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InputError, match="found nothing, expected the profile of these GPUs"):
        measure_nccl(None, None, "x")
    with pytest.raises(InputError, match="found 3 ranks, expected 2 or more and the 2 of machine"):
        measure_nccl(3, machine(1), "x")
