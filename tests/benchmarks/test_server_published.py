"""The published tables of PHub and PBox from plans, what of them is met, and the verdict of a soak."""

from __future__ import annotations

import pytest

from benchmarks.server import published
from benchmarks.server.models import BANDWIDTH, MEMORY
from benchmarks.server.soak import Minute, verdict


@pytest.mark.parametrize("model", BANDWIDTH)
def test_bandwidth_of_every_mode_is_the_published_one(model: str) -> None:
    assert {row["same"] for row in published._bandwidths(model)} == {"yes"}


def test_memory_traffic_has_the_published_order_and_bottlenecks() -> None:
    none, cached, bypass = (published._memory(name) for name in MEMORY)
    assert [row["bottleneck"] for row in (none, cached, bypass)] == ["bridge", "bridge", "memory"]
    assert bypass["ours"] == pytest.approx(40.48, rel=0.01)
    assert cached["ours"] == none["ours"] == pytest.approx(75.3, rel=0.01)
    assert none["ours GB/s"] < cached["ours GB/s"] < bypass["ours GB/s"]


def test_policies_differ_by_the_bytes_that_cross_sockets() -> None:
    key, worker, ratio = published._policies()
    assert key["ours"] == pytest.approx(854.7, rel=0.01)
    assert worker["ours"] == pytest.approx(570, rel=0.01)
    assert ratio["ours"] == pytest.approx(1.5)


def test_costs_come_from_the_formula_and_miss_the_table() -> None:
    gains = [row["computed gain %"] for row in published._costs()]
    assert gains == pytest.approx([26, 37, 40], abs=0.5)


def test_a_soak_fails_for_a_slow_minute_and_for_memory_that_grows() -> None:
    steady = [Minute(100.0, 1 << 28, 1 << 27)] * 5
    assert verdict(steady) == 0
    assert verdict([*steady, Minute(89.0, 1 << 28, 1 << 27)]) == 1
    assert verdict([*steady, Minute(100.0, (1 << 28) + (16 << 20), 1 << 27)]) == 1
