"""What the lab benchmark of sparse gradients plans for, and how it judges."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.sparse.lab import RATES, profile
from treadle.lab.layout import layout
from treadle.probe.resolve import load_hardware


@pytest.mark.parametrize("rate", RATES.values(), ids=str)
def test_hosts_have_links_of_the_rate(tmp_path: Path, rate: float) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(profile(8, rate, 100))
    hosts = layout(load_hardware(str(file))).hosts
    assert [host.devices for host in hosts] == 8 * [1]
    assert hosts[0].interfaces[0].bits_per_second == pytest.approx(rate, rel=1e-3)
