"""What the lab benchmark plans for, and how it judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compression.clusters import NVLINK, problem
from benchmarks.compression.lab import RATES, _compared, _profile, scaled
from benchmarks.compression.training import NOTHING
from treadle.lab.layout import layout
from treadle.planner.passes.compression.decided import decided, plain_groups
from treadle.probe.resolve import load_hardware


@pytest.mark.parametrize("rate", [rate for rate in RATES.values() if rate], ids=str)
def test_two_hosts_have_links_of_the_rate(tmp_path: Path, rate):
    file = tmp_path / "pair.yaml"
    file.write_text(_profile(rate))
    hosts = layout(load_hardware(str(file))).hosts
    assert [host.devices for host in hosts] == [1, 1]
    assert hosts[0].interfaces[0].bits_per_second == pytest.approx(rate, rel=1e-3)


def test_loopback_is_one_host_of_two_ranks(tmp_path: Path):
    file = tmp_path / "pair.yaml"
    file.write_text(_profile(None))
    hardware = load_hardware(str(file))
    assert (hardware.nodes, hardware.devices_per_node) == (1, 2)


def test_an_iteration_takes_what_the_ranks_take():
    made = problem("LSTM", NVLINK, "onebit", 1000)
    slower = scaled(made, 5.0)
    assert slower.forward_ns + slower.backward_ns == pytest.approx(5e6, abs=10)
    assert slower.backward_ns == pytest.approx(5 * made.backward_ns, abs=10)


def test_a_plan_that_loses_or_mispredicts_is_said_to():
    made = problem("LSTM", NVLINK, "onebit", 1000)
    plan = decided(made, plain_groups(made))
    ms = plan.time_ns / 1e6
    met = _compared("any", {NOTHING: ms / 2, "DDP": ms, "joint": ms}, {"joint": plan})
    assert "met" in met.notes[0]
    assert met.rows[2]["within 15 %"] == "yes"
    lost = _compared("any", {NOTHING: ms / 2, "DDP": ms, "joint": 1.2 * ms}, {"joint": plan})
    assert "MISSED" in lost.notes[0]
    assert lost.rows[2]["within 15 %"] == "MISSED"
