"""Logical links, costs and ports: what a sketch leaves of a machine."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.planner.passes.collective.build import (
    MB,
    MESH,
    complete,
    machine,
    relay,
    relay_sketch,
    ring,
    shipped,
    switch,
    switch_sketch,
)
from treadle.planner.documents.hardware import Link
from treadle.planner.documents.sketch import InternodeSketch, IntranodeSketch
from treadle.planner.errors import InputError
from treadle.planner.passes.collective.topology import build_topology, link_cost, policy_for, relays_of


def test_costs_are_ns_rounded_up():
    link = Link(src=0, dst=1, kind="ib", alpha_us=1.7, beta_us_per_MB=106)
    whole, small = link_cost(link, MB), link_cost(link, 1024)
    assert (whole.alpha_ns, whole.beta_ns) == (1700, 106000)
    assert (small.alpha_ns, small.beta_ns) == (1700, 104)
    assert link_cost(link, MB, share=2).beta_ns == 212000


def test_a_free_link_still_costs_a_nanosecond():
    free = link_cost(Link(src=0, dst=1, kind="x", alpha_us=0.0, beta_us_per_MB=0.0), MB)
    assert free.alpha_ns + free.beta_ns == 1


def test_two_small_chunks_together_save_17_percent():
    link = link_cost(Link(src=0, dst=1, kind="ib", alpha_us=1.7, beta_us_per_MB=106), 32 * 1024)
    together, apart = link.alpha_ns + 2 * link.beta_ns, 2 * (link.alpha_ns + link.beta_ns)
    assert round(100 * (1 - together / apart), 2) == 16.96


def test_auto_policy_turns_at_one_megabyte():
    assert policy_for("auto", MB) == "uc-max"
    assert policy_for("auto", 2 * MB) == "uc-min"
    assert policy_for("free", 2 * MB) == "free"


def test_relay_map():
    _, sketch = shipped("dgx2", 2, "dgx2-sk-1")
    assert [relays_of(sketch, rank, 16) for rank in (0, 1, 16, 17)] == [{1}, {1}, {17}, {17}]
    _, sketch = shipped("ndv2", 2, "ndv2-sk-1")
    assert [relays_of(sketch, rank, 8) for rank in (0, 7, 8, 15)] == [{0}, {0}, {8}, {8}]


def test_ndv2_sketch_leaves_66_of_192_links():
    hardware, sketch = shipped("ndv2", 2, "ndv2-sk-1")
    assert len(build_topology(hardware, MESH, MB).routing.links) == 192
    assert len(build_topology(hardware, sketch, MB).routing.links) == 66


def test_parallel_links_divide_beta():
    hardware, sketch = shipped("ndv2", 2, "ndv2-sk-1")
    links = build_topology(hardware, sketch, MB).routing.links
    assert (links[0, 1].beta_ns, links[0, 3].beta_ns) == (46000, 23000)


def test_beta_split_slows_the_shared_nic():
    hardware, sketch = shipped("dgx2", 2, "dgx2-sk-2")
    assert build_topology(hardware, sketch, MB).routing.links[0, 16].beta_ns == 212000


def test_switch_ports_are_per_rank_and_direction():
    ports = build_topology(switch(4), switch_sketch(4, "free"), MB).plan.ports
    assert sorted(port.links for port in ports) == sorted(
        [tuple((r, o) for o in range(4) if o != r) for r in range(4)]
        + [tuple((o, r) for o in range(4) if o != r) for r in range(4)]
    )


def test_links_without_a_switch_have_no_ports():
    assert build_topology(complete(4), MESH, MB).plan.ports == ()


@pytest.mark.parametrize(("where", "size"), [("per_device", 3), ("none", 0)])
def test_one_device_with_several_peers_has_a_network_port(where, size):
    hardware, sketch = shipped("ndv2", 4, "ndv2-sk-1")
    ports = build_topology(hardware, replace(sketch, ib_ports=where), MB).plan.ports
    assert {len(port.links) for port in ports} == ({size} if size else set())


def test_per_nic_port_joins_all_devices_of_the_nic():
    ports = build_topology(relay(2, 10, 5), MESH, MB).plan.ports
    assert {port.links for port in ports} == {((0, 2), (0, 3), (1, 2), (1, 3)), ((2, 0), (2, 1), (3, 0), (3, 1))}


def test_inverted_links_take_the_costs_of_their_own_direction():
    hardware = machine(2, [(0, 1, 1, 8), (1, 0, 2, 4)])
    topology = build_topology(hardware, MESH, MB, forward=False, inverted=True)
    assert topology.plan.links[1, 0].alpha_ns == 2000


def test_a_missing_inverse_is_named():
    with pytest.raises(InputError, match="no link 1 -> 0"):
        build_topology(ring(4, one_way=True), MESH, MB, forward=False, inverted=True)


def _sketch(**intra):
    return replace(MESH, intranode_sketch=IntranodeSketch(**intra))


@pytest.mark.parametrize(
    ("hardware", "sketch", "path"),
    [
        (ring(4), replace(MESH, num_nodes=2), "$.num_nodes"),
        (ring(4), _sketch(strategy="switch", switches=((0, 9),)), "$.intranode_sketch.switches[0]"),
        (ring(4), _sketch(strategy="switch", switches=((0, 2),)), "$.intranode_sketch.switches[0]"),
        (ring(4), _sketch(strategy="switch", switches=((0, 0, 1),)), "$.intranode_sketch.switches[0]"),
        (ring(4), _sketch(strategy="direct", direct_links=((0, 2),)), "$.intranode_sketch.direct_links[0]"),
        (
            relay(2, 10, 5),
            replace(MESH, internode_sketch=InternodeSketch(strategy="relay", internode_conn={"5": (0,)})),
            "$.internode_sketch.internode_conn.5",
        ),
        (
            relay(2, 10, 5),
            replace(
                relay_sketch(batching=False),
                internode_sketch=InternodeSketch(
                    strategy="relay", internode_conn={"1": (0,)}, chunk_to_relay_map=(2, 0)
                ),
            ),
            "$.internode_sketch.chunk_to_relay_map",
        ),
        (
            relay(2, 10, 5),
            replace(
                MESH,
                internode_sketch=InternodeSketch(strategy="relay", internode_conn={"1": (0,)}, beta_split={"1": 2}),
            ),
            "$.internode_sketch.beta_split",
        ),
    ],
)
def test_a_sketch_that_does_not_fit_is_refused_at_its_spot(hardware, sketch, path):
    with pytest.raises(InputError) as error:
        build_topology(hardware, sketch, MB)
    assert error.value.path == path
    assert "found" in str(error.value)
    assert "expected" in str(error.value)
