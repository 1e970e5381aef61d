"""What a survey found becomes a profile that plans and the lab read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from treadle.lab.layout import layout
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.probe.hosts_profile import Inside, MeasuredHost, profile
from treadle.probe.survey import Survey

HOST = MeasuredHost(interface="eth0", ranks=1, cpu_model="a CPU", cpu_cores=2, memory_bytes=1 << 30)


def made(hosts: list[MeasuredHost], found: Survey, inside: Inside | None = None) -> Hardware:
    """Through text, which validates it."""
    return store.loads(
        store.dumps(profile(hosts, found, 3010.0, inside, "treadle profile measure", 3000.0)), "found", Hardware
    )


def test_slow_nics_uplinks_and_pairs_are_where_the_lab_looks_for_them() -> None:
    nics = (12.5e6, 12.5e6, 3.125e6, 12.5e6)
    found = made([HOST] * 4, Survey(nics, {(0, 1): 6.25e6}, (((0, 1), 12.5e6),)))
    assert [each.nics[0].speed_gbps for each in found.every_node] == [0.1, 0.1, 0.025, 0.1]
    hosts = layout(found).hosts
    assert [host.interfaces[0].bits_per_second for host in hosts] == pytest.approx([1e8, 1e8, 2.5e7, 1e8], rel=1e-3)
    assert hosts[0].interfaces[0].slower[0][1] == pytest.approx(5e7, rel=1e-3)
    assert layout(found).uplinks[0].bits_per_second == pytest.approx(1e8, rel=1e-3)
    assert layout(found).latency_us == 3010
    assert "3000 us that the runtime adds" in found.sources["network"]


def test_hosts_of_several_ranks_have_links_inside() -> None:
    two = replace(HOST, ranks=2)
    found = made([two, two, replace(HOST, ranks=3)], Survey((1e8,) * 3, {}, ()), Inside(10.0, 2.0**30))
    assert found.ranks == 7
    assert [len(each.links) for each in found.every_node] == [2, 2, 6]
    assert found.links[0].beta_us_per_MB == pytest.approx(976.6)
    assert found.devices[0].memory_bytes == 1 << 29


def test_hosts_of_a_lab_share_the_memory_of_the_machine() -> None:
    found = profile([replace(HOST, ranks=2)] * 2, Survey((1e8,) * 2, {}, ()), 1, None, "x", 0, one_machine=True)
    assert (found.host.memory_bytes, found.devices[0].memory_bytes) == (1 << 29, 1 << 28)
    assert "all hosts of the lab share equally" in found.sources["host"]
