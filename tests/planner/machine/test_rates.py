"""What is taken from profiles, and that what is assumed is said."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.machine.machines import profile, shipped
from treadle.planner import resources
from treadle.planner.documents.hardware import Device, Hardware, Link, Transport
from treadle.planner.errors import InputError
from treadle.planner.machine.collectives import Tuning, configs, placement
from treadle.planner.machine.rates import machine_of


def test_the_cluster_of_the_source():
    """16 DGX-2: a port of 2^20 B / 8 us and eight NICs of 2^20 B / 106 us, of which messages reach 80 %."""
    machine = shipped("dgx2", 16)
    assert (machine.nodes, machine.per_node, machine.ranks, machine.multiprocessors) == (16, 16, 256, 80)
    assert machine.node_rate == pytest.approx(0.8 * 2**20 / 8)
    assert (machine.nics, machine.nic_rate) == (8, pytest.approx(0.8 * 2**20 / 106))
    assert machine.memory_rate == pytest.approx(0.8 * 900e3)
    assert machine.with_library.rate("f16") == pytest.approx(0.8 * 125e6)
    assert {p.name: (p.node_us, p.network_us) for p in machine.protocols} == {
        "LL": (0.7, 2.7),
        "LL128": (1.9, 4.0),
        "Simple": (3.4, 9.6),
    }


def test_ll128_is_not_searched_over_pcie():
    machine = shipped("cluster-10gbe", 1)
    assert [each.name for each in machine.protocols] == ["LL", "Simple"]
    place = placement(machine, machine.ranks, 1)
    found = configs(machine, Tuning(), place, ("AllReduce",), True)
    assert {config.protocol for config in found} == {"LL", "Simple"}


@pytest.mark.parametrize("name", sorted(set(resources.names("profiles")) - {"slow-nic"}))  # its nodes are unequal
def test_every_shipped_profile_is_a_machine(name):
    hardware, machine = profile(name), shipped(name)
    said = {
        "launch_us": hardware.devices[0].launch_us > 0,
        "multiprocessors": hardware.devices[0].multiprocessors is not None,
        "memory_bandwidth": hardware.devices[0].memory_bandwidth is not None,
        "flops": bool(hardware.devices[0].peak_flops),
        "transport": hardware.transport is not None,
    }
    for what, given in said.items():
        assert (what in machine.assumed) != given
    assert all(machine.assumed.values())
    assert min(machine.memory_rate, machine.launch_us, machine.rate("f32")) > 0


def test_links_of_a_device_add_up_and_the_worst_device_counts():
    links = [
        Link(src=a, dst=b, kind="nvlink", alpha_us=1.0, beta_us_per_MB=10.0) for a in (0, 1) for b in (0, 1) if a != b
    ]
    links += [Link(src=2, dst=b, kind="nvlink", alpha_us=2.0, beta_us_per_MB=10.0, count=2) for b in (0, 1)]
    links += [Link(src=0, dst=2, kind="pcie", alpha_us=9.0, beta_us_per_MB=80.0)]
    machine = machine_of(
        Hardware(
            version=1,
            name="three",
            nodes=1,
            devices=(Device(model="any", kind="gpu", count=3),),
            links=tuple(links),
            transport=Transport(link_efficiency=1.0, step_us=0.5),
        )
    )
    assert machine.node_rate == pytest.approx(2**20 / 10)
    assert machine.protocols[0].node_us == pytest.approx(2.0 + 0.66 + 0.5), "alpha of link and protocol, and a step"
    capped = replace(profile("dgx2"), transport=Transport(device_gbps=50.0))
    assert machine_of(capped).node_rate == pytest.approx(50e3)


def test_links_without_costs():
    hardware = profile("dgx2")
    unmeasured = replace(hardware, switches=(replace(hardware.switches[0], beta_us_per_MB=None),))
    with pytest.raises(InputError, match=r"\$\.switches\[0\].*expected both"):
        machine_of(unmeasured)


def test_too_many_ranks():
    with pytest.raises(InputError, match="found 17 ranks, expected at most the 16 of dgx2"):
        shipped("dgx2").nodes_of(17)


def test_nobody_multiplies_whole_numbers():
    with pytest.raises(InputError, match="found a MatMul of i32"):
        shipped("dgx2").rate("i32")
