"""Several NICs per GPU, unequal nodes and unequal paths between nodes, against sums done by hand.

One NIC carries 1 MiB in 80 us, and alpha is 2 us between nodes; inside a node links cost next to nothing.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.plans import collective_plan
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Device, Hardware, Network, Nic, NodeGroup, OtherNodes, Switch, scaled
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import expand, nic_sets, one_node
from treadle.planner.machine.rates import machine_of
from treadle.planner.passes.collective.sketching import propose
from treadle.planner.passes.collective.topology import build_topology

NETWORK = Network(kind="ib", alpha_us=2, beta_us_per_MB=80)


def nics(*owners: tuple[int, ...], speed: float = 100) -> tuple[Nic, ...]:
    return tuple(Nic(name=f"nic{i}", devices=devices, speed_gbps=speed) for i, devices in enumerate(owners))


def own(devices: int, each: int = 1) -> tuple[Nic, ...]:
    return nics(*((device,) for device in range(devices) for _ in range(each)))


def fields(devices: int, each: int = 1) -> dict[str, object]:
    """A node whose devices share a fast switch and have `each` NICs of their own."""
    switch = Switch(name="nv", kind="nvswitch", members=tuple(range(devices)), alpha_us=0, beta_us_per_MB=0.1)
    return {
        "devices": (Device(model="toy", kind="gpu", count=devices),),
        "switches": (switch,) if devices > 1 else (),
        "nics": own(devices, each),
    }


def machine(devices: int, each: int = 1, nodes: int = 2, **more: object) -> Hardware:
    return Hardware(
        **{"version": 1, "name": "toy", "nodes": nodes, "network": NETWORK, **fields(devices, each), **more}
    )


def planned(hardware: Hardware, collective: str, size: int = MEBIBYTE, method: str = "greedy") -> Plan:
    return collective_plan(
        collective,  # type: ignore[arg-type]
        hardware,
        propose(hardware, collective=collective, size_bytes=size),
        size_bytes=size,
        method=method,
    )


def betas(hardware: Hardware) -> dict[tuple[int, int], float | None]:
    return {(link.src, link.dst): link.beta_us_per_MB for link in expand(hardware).links if link.kind == "ib"}


@pytest.mark.parametrize(("each", "us"), [(1, 82), (2, 42), (4, 22)])
def test_four_nics_per_gpu_carry_four_times_as_much(each, us):
    """Two nodes of one GPU: alpha of 2 us and 80 us over the NICs for the MiB of the other."""
    plan = planned(machine(1, each), "allgather")
    assert plan.certificate.objective == plan.certificate.lower_bound == us * 1000


def test_several_gpus_send_through_all_their_nics_at_once():
    """2 + 2 GPUs, alltoall of 2 MiB: 1 MiB per GPU crosses, in 80 us and 20 us; in all 0.5 MiB pieces."""
    slow, fast = (planned(machine(2, each), "alltoall", 2 * MEBIBYTE).certificate for each in (1, 4))
    assert slow.lower_bound == 82_000
    assert fast.lower_bound == 22_000
    assert 3 < slow.objective / fast.objective < 4


def test_speeds_and_sharing_decide_what_a_device_gets():
    """Device 0 has a NIC of 100 and one of 50 Gb/s, device 1 that of 50: 80 / 1.5 and 80 / 0.5 us."""
    mixed = (*nics((0,), speed=100), Nic(name="slow", devices=(0, 1), speed_gbps=50))
    found = betas(machine(2, nics=mixed))
    assert found[0, 2] == pytest.approx(80 / 1.5)
    assert found[0, 3] == found[1, 2] == found[1, 3] == 160
    topology = build_topology(machine(2, nics=mixed), propose(machine(2, nics=mixed)), MEBIBYTE)
    (shared,) = (port for port in topology.plan.ports if port.name == "nic 1 out")
    assert {src for src, _ in shared.links} == {0, 1}
    assert expand(machine(2, nics=mixed)).nics == ((0, 1), (2, 3))
    assert nic_sets(machine(2, nics=mixed)) == [((0, 1), 1.5)]
    assert nic_sets(machine(2, each=4)) == [((0,), 4.0), ((1,), 4.0)]


def test_a_node_with_half_the_nics_slows_its_own_traffic_only():
    hardware = machine(1, 4, nodes=2, other_nodes=(OtherNodes(nics=own(1, 2)),))
    assert betas(hardware) == {(0, 1): 20, (1, 0): 20, (0, 2): 40, (2, 0): 40, (1, 2): 40, (2, 1): 40}
    # 2 MiB must come into each node: at 40 us for the slow one, at 20 us where all are fast; from it 1 MiB leaves.
    assert planned(hardware, "allgather").certificate.lower_bound == 82_000
    assert planned(machine(1, 4, nodes=3), "allgather").certificate.lower_bound == 42_000


def test_eight_and_four_gpus():
    """Every GPU of the second node must get 8 of 32 MiB through its own NIC: 2 MiB for each MiB of input, 160 us."""
    hardware = machine(8, nodes=1, other_nodes=(OtherNodes(**fields(4)),))
    assert hardware.ranks == 12
    topology = expand(hardware)
    assert [topology.node(rank) for rank in range(12)] == [0] * 8 + [1] * 4
    assert len([link for link in topology.links if link.kind == "ib"]) == 2 * 8 * 4
    plan = planned(hardware, "allgather")
    assert "must go into ranks 8 to 11" in plan.certificate.argument
    assert 162_000 <= plan.certificate.lower_bound <= 162_200
    assert plan.certificate.gap < 0.2
    assert planned(hardware, "allreduce").certificate.lower_bound >= 22_000


def test_many_unequal_nodes_send_on_rails():
    hardware = machine(8, nodes=8, other_nodes=(OtherNodes(**fields(4)),))
    links, node = propose(hardware).intranode_sketch.direct_links, expand(hardware).node
    across = {(a, b) for a, b in links if node(a) != node(b)}
    assert len(across) == 8 * 7 * 8 + 8 * 2 * 8
    assert {(0, 8), (5, 65), (65, 5), (65, 1)} <= across
    assert planned(hardware, "allgather", 1024).certificate.verdict == "accepted"


def test_groups_of_nodes_have_their_own_costs():
    groups = (
        NodeGroup(name="row", nodes=(0, 1, 2), beta_us_per_MB=40),
        NodeGroup(name="pair", nodes=(1, 2), alpha_us=1),
    )
    hardware = machine(1, nodes=4, network=replace(NETWORK, groups=groups))
    costs = {(link.src, link.dst): (link.alpha_us, link.beta_us_per_MB) for link in expand(hardware).links}
    assert costs[0, 1] == (2, 40)
    assert costs[1, 2] == costs[2, 1] == (1, 40)
    assert costs[0, 3] == costs[3, 2] == (2, 80)
    assert scaled(hardware, 2).network.groups == (NodeGroup(name="row", nodes=(0, 1), beta_us_per_MB=40),)
    near, far = planned(scaled(hardware, 2), "allgather"), planned(machine(1), "allgather")
    assert (near.certificate.objective, far.certificate.objective) == (42_000, 82_000)


def test_equal_nodes_stay_as_they_are():
    hardware = machine(2, network=replace(NETWORK, groups=(NodeGroup(name="leaf", nodes=(0, 1)),)))
    assert one_node(hardware) is hardware
    assert expand(hardware).per_node == 2


def test_unequal_nodes_survive_their_file(tmp_path):
    hardware = machine(2, other_nodes=(OtherNodes(nodes=2, **fields(1)),))
    store.save(hardware, tmp_path / "hw.yaml")
    assert store.load(tmp_path / "hw.yaml", Hardware) == hardware
    assert [node.devices_per_node for node in hardware.every_node] == [2, 2, 1, 1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"nodes": 1, "network": None, "other_nodes": (OtherNodes(),)}, r"\$.network: found nothing, .* 2 nodes"),
        ({"other_nodes": (OtherNodes(nics=nics((5,))),)}, r"\$.other_nodes\[0\].nics\[0\].devices\[0\]: found 5"),
        ({"other_nodes": (OtherNodes(devices=()),)}, r"\$.other_nodes\[0\].devices: found no device"),
        (
            {"network": replace(NETWORK, groups=(NodeGroup(name="x", nodes=(0, 2)),))},
            r"\$.network.groups\[0\].nodes\[1\]: found 2, expected a node below 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(more, message, tmp_path):
    with pytest.raises(InputError, match=message):
        store.save(machine(2, **more), tmp_path / "hw.yaml")


def test_who_needs_equal_nodes_says_so():
    hardware = machine(2, other_nodes=(OtherNodes(nics=own(2, 2)),))
    with pytest.raises(InputError, match=r"\$.other_nodes: found unequal nodes, expected equal ones"):
        machine_of(hardware)
    with pytest.raises(InputError, match="its file says how many of each"):
        scaled(hardware, 5)
    assert machine_of(machine(2, 4)).nic_rate == pytest.approx(4 * machine_of(machine(2, 1)).nic_rate)
