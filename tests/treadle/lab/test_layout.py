"""A profile says which hosts there are, how they are joined, and what every link carries."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from treadle.lab.layout import address, layout
from treadle.planner.documents.hardware import Device, Hardware, Network, Nic, NodeGroup, OtherNodes, Uplink
from treadle.planner.errors import InputError
from treadle.probe.resolve import load_hardware

GIGABIT_BETA = 8 * 2**20 / 1e9 * 1e6
"""us per MiB of a link of 1 Gbit/s."""


def cluster(nodes: int, devices: int = 1, **fields: object) -> Hardware:
    network = Network(kind="ethernet", alpha_us=30, beta_us_per_MB=GIGABIT_BETA)
    return Hardware(
        version=1,
        name="cluster",
        nodes=nodes,
        devices=(Device(model="cpu", kind="cpu", count=devices),),
        network=replace(network, **{name: fields.pop(name) for name in ("groups", "uplinks") if name in fields}),
        **fields,
    )


def test_a_nic_carries_what_the_network_says() -> None:
    found = layout(cluster(2), 10)
    assert [host.name for host in found.hosts] == ["node0", "node1"]
    assert [i.bits_per_second for host in found.hosts for i in host.interfaces] == [100_000_000] * 2
    assert (found.bridges, found.uplinks) == (1, ())


def test_nics_are_interfaces_with_their_speeds_and_devices_are_where_there_are_none() -> None:
    nics = (Nic(name="a", devices=(0, 1), speed_gbps=100), Nic(name="b", devices=(2,), speed_gbps=25))
    fast, slow = layout(cluster(2, 3, nics=nics)).hosts[0].interfaces
    assert (fast.bits_per_second, slow.bits_per_second) == (1_000_000_000, 250_000_000)
    assert len(layout(cluster(2, 3)).hosts[0].interfaces) == 3
    unused = Nic(name="c", devices=(), speed_gbps=400)
    assert layout(cluster(2, 3, nics=(*nics, unused))).hosts == layout(cluster(2, 3, nics=nics)).hosts


def test_a_node_with_another_nic_has_another_rate() -> None:
    nics = {speed: (Nic(name="a", devices=(0,), speed_gbps=speed),) for speed in (10, 1)}
    found = layout(cluster(3, nics=nics[10], other_nodes=(OtherNodes(nics=nics[1]),)))
    assert [host.interfaces[0].bits_per_second for host in found.hosts] == [1_000_000_000] * 3 + [100_000_000]


def test_paths_to_some_nodes_are_slower() -> None:
    found = layout(cluster(4, groups=(NodeGroup(name="pair", nodes=(0, 3), beta_us_per_MB=4 * GIGABIT_BETA),)))
    first, second, *_ = (host.interfaces[0] for host in found.hosts)
    assert first.slower == ((address(3, 0), 250_000_000),)
    assert second.slower == ()


def test_uplinks_hang_bridges_below_each_other() -> None:
    uplinks = (
        Uplink(name="rack 1", nodes=(2, 3), beta_us_per_MB=2 * GIGABIT_BETA),
        Uplink(name="row", nodes=(0, 1, 2, 3), beta_us_per_MB=4 * GIGABIT_BETA),
        Uplink(name="rack 0", nodes=(0, 1), beta_us_per_MB=2 * GIGABIT_BETA),
    )
    found = layout(cluster(5, uplinks=uplinks))
    names = {each.bridge: each.name for each in found.uplinks} | {0: "core"}
    assert [names[host.bridge] for host in found.hosts] == ["rack 0", "rack 0", "rack 1", "rack 1", "core"]
    assert {each.name: (names[each.above], each.bits_per_second) for each in found.uplinks} == {
        "row": ("core", 250_000_000),
        "rack 0": ("row", 500_000_000),
        "rack 1": ("row", 500_000_000),
    }


@given(st.integers(0, 255), st.integers(0, 63))
def test_addresses_differ_and_rails_are_subnets(node: int, rail: int) -> None:
    mine = ip_address(address(node, rail))
    assert mine in ip_network("10.64.0.0/10")
    assert mine in ip_network(f"{address(0, rail)}/16", strict=False)
    assert address(node, rail) not in (address((node + 1) % 256, rail), address(node, (rail + 1) % 64))
    assert not str(mine).endswith(".0.0")
    assert not str(mine).endswith(".255.255")


@pytest.mark.parametrize(
    ("hardware", "scale", "line"),
    [
        (replace(cluster(1), network=None), 1, "cluster: found one node and no network, expected the network between"),
        (cluster(1), 1, "cluster: found 1 node, expected at least 2; --nodes sets another number"),
        (cluster(257), 1, "cluster: found 257 nodes, expected at most 256"),
        (cluster(10**11), 1, "cluster: found 100000000000 nodes, expected at most 256"),
        (cluster(2, 65), 1, "cluster: found 65 NICs in a node, expected at most 64"),
        (cluster(2), 1e6, "cluster: network: found 1 kbit/s at --scale 1e+06, expected 100 kbit/s to 30 Gbit/s"),
        (cluster(2), 1e-3, "found 1000 Gbit/s at --scale 0.001"),
    ],
)
def test_what_cannot_be_a_lab_is_one_line(hardware: Hardware, scale: float, line: str) -> None:
    with pytest.raises(InputError, match=re.escape(line)):
        layout(hardware, scale)


def test_a_scale_is_slow_motion() -> None:
    assert layout(cluster(2)).latency_us == 30
    assert layout(cluster(2), 100).latency_us == 3000


@pytest.mark.parametrize(
    ("name", "devices", "slowest", "uplinks"),
    [
        ("racks-2x4", [1] * 8, 100e6, [100e6, 100e6]),
        ("racks-2x4-mixed", [1] * 8, 100e6, [100e6, 100e6]),
        ("hosts-2x2", [2, 2], 100e6, []),
        ("slow-nic", [1] * 4, 25e6, []),
    ],
)
def test_shipped_profiles_for_the_lab(name: str, devices: list[int], slowest: float, uplinks: list[float]) -> None:
    found = layout(load_hardware(name), 100)
    assert [host.devices for host in found.hosts] == devices
    rates = [interface.bits_per_second for host in found.hosts for interface in host.interfaces]
    assert min(rates) == pytest.approx(slowest, rel=1e-3)
    assert max(rates) == pytest.approx(100e6, rel=1e-3)
    assert [each.bits_per_second for each in found.uplinks] == pytest.approx(uplinks, rel=1e-3)
