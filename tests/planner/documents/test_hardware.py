"""The hardware profile: shipped files, expansion into ranks and links, scaling, and what is refused."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.documents.sources import source_of
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import (
    Device,
    Hardware,
    Link,
    Network,
    Nic,
    NodeGroup,
    PcieSwitch,
    Switch,
    Uplink,
    scaled,
    slow_motion,
)
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import expand

NAMES = resources.names("profiles")
GPUS = Device(model="toy", kind="gpu", count=4)


def load(name: str) -> Hardware:
    return store.load(resources.locate("profiles", name), Hardware)


def machine(**fields) -> Hardware:
    return Hardware(**{"version": 1, "name": "toy", "nodes": 1, "devices": (GPUS,), **fields})


def test_what_the_issue_asks_for_ships():
    assert {"ndv2", "dgx1", "dgx2", "ndv4", "ndv5", "mi300x", "cluster-10gbe", "cluster-25gbe", "cpu-2x2"} <= set(NAMES)
    assert {"ring4", "mesh4", "switch4", "p3-v100-16gb", "racks-2x4", "hosts-2x2", "slow-nic"} <= set(NAMES)


def numeric_leaves(value, path=""):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numeric_leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from numeric_leaves(item, f"{path}[{index}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_a_shipped_profile_says_where_it_comes_from(name):
    hardware = load(name)
    assert hardware.name == name
    raw = msgspec.to_builtins(hardware)
    leaves = [path for path in numeric_leaves(raw) if path != "version"]
    assert len(leaves) > 3
    assert [path for path in leaves if not source_of(hardware, path)] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_source_speaks_of_something_absent(name):
    raw = msgspec.to_builtins(load(name))
    paths = set(numeric_leaves(raw))
    for prefix in raw["sources"]:
        assert any(path == prefix or path.startswith((prefix + ".", prefix + "[")) for path in paths), prefix


def test_the_longest_prefix_tells_the_source():
    hardware = machine(sources={"devices": "a", "devices[0].count": "b", "link": "c"})
    assert source_of(hardware, "devices[0].count") == "b"
    assert source_of(hardware, "devices[0].memory_bytes") == "a"
    assert source_of(hardware, "devices[10].count") == "a"
    assert source_of(hardware, "links[0].src") is None


def test_costs_of_ndv2_and_dgx2_are_table_5_1():
    ndv2, dgx2 = load("ndv2"), load("dgx2")
    assert {(link.alpha_us, link.beta_us_per_MB) for link in ndv2.links} == {(0.7, 46)}
    assert [(s.alpha_us, s.beta_us_per_MB, s.count) for s in dgx2.switches] == [(0.7, 8, 1)]
    for hardware in (ndv2, dgx2):
        assert hardware.network == Network(kind="ib", alpha_us=1.7, beta_us_per_MB=106)
    assert [nic.devices for nic in ndv2.nics] == [tuple(range(8))]
    assert [nic.devices for nic in dgx2.nics] == [(2 * k, 2 * k + 1) for k in range(8)]


def test_ndv2_hangs_two_gpus_under_each_of_four_pcie_switches_and_the_nic_under_one():
    ndv2 = load("ndv2")
    assert [(pcie.numa, pcie.devices) for pcie in ndv2.pcie] == [(0, (0, 1)), (0, (2, 3)), (1, (4, 5)), (1, (6, 7))]
    assert ndv2.nics[0].pcie in {pcie.name for pcie in ndv2.pcie}


@pytest.mark.parametrize("name", ["ndv2", "dgx1"])
def test_the_dgx1_graph_has_the_automorphisms_of_taccl(name):
    hardware = load(name)
    count = {(link.src, link.dst): link.count for link in hardware.links}
    assert len(count) == 32
    assert all(count[dst, src] == number for (src, dst), number in count.items())
    assert [sum(n for (src, _), n in count.items() if src == gpu) for gpu in range(8)] == [6] * 8
    plain = [p for p in permutations(range(8)) if all((p[src], p[dst]) in count for src, dst in count)]
    exact = [p for p in plain if all(count[p[src], p[dst]] == n for (src, dst), n in count.items())]
    assert len(plain) == 48
    assert len(exact) == 4
    assert {p[0] for p in exact} == {0, 1, 4, 5}


@pytest.mark.parametrize(
    ("name", "nodes", "ranks", "inside", "between"),
    [
        ("ndv2", 2, 16, 64, 128),
        ("ndv2", 4, 32, 128, 768),
        ("dgx2", 2, 32, 480, 512),
        ("mi300x", 1, 8, 56, 0),
        ("cpu-2x2", 2, 4, 4, 8),
        ("ring4", 1, 4, 8, 0),
        ("mesh4", 1, 4, 12, 0),
        ("switch4", 1, 4, 12, 0),
        ("cluster-10gbe", 4, 16, 48, 192),
    ],
)
def test_expand_counts(name, nodes, ranks, inside, between):
    topology = expand(scaled(load(name), nodes))
    assert topology.ranks == ranks
    crossing = [link for link in topology.links if topology.node(link.src) != topology.node(link.dst)]
    assert len(topology.links) - len(crossing) == inside
    assert len(crossing) == between


def test_expand_shifts_every_node_and_divides_beta():
    topology = expand(scaled(load("ndv2"), 2))
    by_ends = {(link.src, link.dst): link for link in topology.links}
    assert by_ends[8, 9].beta_us_per_MB == 46
    assert by_ends[8, 11].beta_us_per_MB == 23
    assert by_ends[0, 8].kind == "ib"
    assert topology.nics == (tuple(range(8)), tuple(range(8, 16)))
    assert topology.links == tuple(sorted(topology.links, key=lambda link: (link.src, link.dst, link.kind)))


def test_parallel_links_into_a_switch_divide_beta():
    switch = Switch(name="s", kind="nvswitch", members=(0, 2, 3), alpha_us=1.0, beta_us_per_MB=42.0, count=6)
    topology = expand(machine(switches=(switch,)))
    assert {(link.src, link.dst) for link in topology.links} == {(0, 2), (0, 3), (2, 0), (2, 3), (3, 0), (3, 2)}
    assert {link.beta_us_per_MB for link in topology.links} == {7.0}
    assert topology.switches[0].beta_us_per_MB == 7.0


def test_switches_of_several_nodes_have_their_own_names():
    topology = expand(scaled(load("dgx2"), 2))
    assert [(switch.name, switch.members[0]) for switch in topology.switches] == [("nvswitch@0", 0), ("nvswitch@1", 16)]


def test_scaling_needs_a_network():
    assert scaled(load("ring4"), 1).nodes == 1
    with pytest.raises(InputError, match="no network between nodes"):
        scaled(load("ring4"), 2)
    with pytest.raises(InputError, match="at least 1"):
        scaled(load("ndv2"), 0)


@given(st.sampled_from(NAMES), st.integers(1, 5))
def test_scaling_repeats_nodes(name, nodes):
    hardware = load(name)
    if (nodes > 1 and hardware.network is None) or hardware.other_nodes:
        return
    one, many = expand(scaled(hardware, 1)), expand(scaled(hardware, nodes))
    per = hardware.devices_per_node
    local = [link for link in many.links if link.src // per == link.dst // per]
    assert many.ranks == nodes * one.ranks
    assert len(local) == nodes * len(one.links)
    assert len(many.links) - len(local) == nodes * (nodes - 1) * per * per
    assert len(many.nics) == nodes * len(one.nics)


def test_links_without_costs_cannot_be_planned_on():
    with pytest.raises(InputError, match=r"toy: \$\.links\[0\]: found no alpha_us.*profile measure.*--costs-from"):
        expand(machine(links=(Link(src=0, dst=1, kind="nvlink", beta_us_per_MB=1.0),)))
    with pytest.raises(InputError, match=r"\$\.switches\[0\]"):
        expand(machine(switches=(Switch(name="s", kind="x", members=(0, 1)),)))


def test_more_ranks_than_fit_are_refused_before_they_are_built():
    with pytest.raises(InputError, match="expected at most 1024 ranks"):
        expand(scaled(load("ndv2"), 10**9))


@pytest.mark.parametrize(
    ("fields", "path", "found"),
    [
        ({"devices": ()}, "$.devices", "no device"),
        ({"devices": (Device(model="m", kind="gpu", count=1025),)}, "$.devices", "1025 devices"),
        ({"links": (Link(src=0, dst=1, kind="x", beta_us_per_MB=1e12),)}, "$.links[0].beta_us_per_MB", "1e+12"),
        ({"switches": (Switch(name="s", kind="x", members=(0, 1), alpha_us=2e7),)}, "$.switches[0].alpha_us", "2e+07"),
        ({"network": Network(kind="x", alpha_us=1, beta_us_per_MB=1e8)}, "$.network.beta_us_per_MB", "1e+08"),
        ({"nodes": 2}, "$.network", "nothing"),
        ({"links": (Link(src=0, dst=4, kind="x"),)}, "$.links[0].dst", "4"),
        ({"links": (Link(src=1, dst=1, kind="x"),)}, "$.links[0]", "from 1 to itself"),
        ({"links": (Link(src=0, dst=1, kind="x"),) * 2}, "$.links[1]", "a second x link 0 -> 1"),
        ({"switches": (Switch(name="s", kind="x", members=(0, 9)),)}, "$.switches[0].members[1]", "9"),
        ({"switches": (Switch(name="s", kind="x", members=(0, 0)),)}, "$.switches[0].members[1]", "0 again"),
        (
            {"switches": (Switch(name="s", kind="x", members=(0, 1), in_network=("reduce", "reduce")),)},
            "$.switches[0].in_network[1]",
            "reduce again",
        ),
        ({"nics": (Nic(name="n", devices=(4,)),)}, "$.nics[0].devices[0]", "4"),
        ({"nics": (Nic(name="n", devices=(), pcie="p"),)}, "$.nics[0].pcie", "unknown switch 'p'"),
        ({"nics": (Nic(name="n", devices=()),) * 2}, "$.nics[1].name", "second 'n'"),
        ({"pcie": (PcieSwitch(name="p", parent="q"),)}, "$.pcie[0].parent", "unknown switch 'q'"),
        ({"pcie": (PcieSwitch(name="p", parent="p"),)}, "$.pcie[0].parent", "a cycle of PCIe switches"),
        (
            {"pcie": (PcieSwitch(name="p", parent="q"), PcieSwitch(name="q", parent="p"))},
            "$.pcie[0].parent",
            "a cycle of PCIe switches",
        ),
    ],
)
def test_broken_cross_references_name_the_spot(fields, path, found):
    problems = list(machine(**fields).problems())
    assert problems
    assert problems[0][0] == path
    assert found in problems[0][1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 0}, r"\$\.nodes: found"),
        ({"devices": [{"model": "x", "kind": "tpu", "count": 1}]}, r"\$\.devices\[0\]\.kind: found"),
        ({"devices": [{"model": "x", "kind": "gpu", "count": -1}]}, r"\$\.devices\[0\]\.count: found"),
        ({"links": [{"src": 0, "dst": 1, "kind": "x", "alpha_us": -1}]}, r"\$\.links\[0\]\.alpha_us: found"),
        ({"network": {"kind": "ib", "alpha_us": 1}}, r"\$\.network\.beta_us_per_MB: found nothing"),
        ({"speed": 3}, r"\$\.speed: found an unknown field"),
        ({"version": 99}, r"\$\.version: found hardware version 99"),
    ],
)
def test_malformed_files_end_in_one_line(tmp_path, change, message):
    raw = msgspec.to_builtins(machine()) | {"kind": "hardware"} | change
    file = tmp_path / "hw.json"
    file.write_bytes(msgspec.json.encode(raw))
    with pytest.raises(InputError, match=message) as caught:
        store.load(file, Hardware)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_saved_profile_reads_back_the_same(tmp_path):
    for name in NAMES:
        hardware = load(name)
        store.save(hardware, tmp_path / "hw.json")
        assert store.load(tmp_path / "hw.json", Hardware) == hardware


def racks(*members: tuple[int, ...]) -> Network:
    uplinks = (
        Uplink(name=f"r{number}", nodes=nodes, beta_us_per_MB=9 - number) for number, nodes in enumerate(members)
    )
    return Network(kind="ethernet", alpha_us=30, beta_us_per_MB=1, uplinks=tuple(uplinks))


@pytest.mark.parametrize(
    ("nodes", "path", "found"),
    [
        ([(0, 9)], "$.network.uplinks[0].nodes[1]", "9"),
        ([(0, 0)], "$.network.uplinks[0].nodes[1]", "0 again"),
        ([()], "$.network.uplinks[0].nodes", "no node"),
        ([(0, 1), (1, 2)], "$.network.uplinks[1].nodes", "nodes of 'r0'"),
        ([(0, 1), (0, 1)], "$.network.uplinks[1].nodes", "nodes of 'r0'"),
    ],
)
def test_uplinks_that_make_no_tree_are_refused(nodes, path, found):
    problems = machine(nodes=4, network=racks(*nodes)).problems()
    assert (path, found) in [(at, what) for at, what, _ in problems]


def test_uplinks_have_names_of_their_own_and_costs_that_can_be_planned_with():
    first, second = racks((0, 1), (2, 3)).uplinks
    network = replace(racks(), uplinks=(first, replace(second, name="r0", beta_us_per_MB=1e8)))
    problems = [(at, what) for at, what, _ in machine(nodes=4, network=network).problems()]
    assert problems == [("$.network.uplinks[1].beta_us_per_MB", "1e+08"), ("$.network.uplinks[1].name", "second 'r0'")]


def test_fewer_nodes_keep_the_uplinks_they_still_share():
    """A row of one rack is that rack, at the slower of both rates."""
    whole = machine(nodes=6, network=racks((0, 1, 2, 3), (0, 1), (2, 3)))
    assert whole.is_even
    kept = scaled(whole, 4).network.uplinks
    assert [(each.name, each.nodes) for each in kept] == [("r1", (0, 1)), ("r2", (2, 3))]
    assert [(each.name, each.nodes) for each in scaled(whole, 3).network.uplinks] == [("r1", (0, 1)), ("r2", (2,))]
    assert scaled(machine(nodes=6, network=racks((0, 1, 2, 3), (0, 1))), 5).network.uplinks[0].nodes == (0, 1, 2, 3)
    row = scaled(machine(nodes=6, network=racks((0, 1, 5), (0, 1))), 3).network.uplinks
    assert [(each.name, each.nodes) for each in row] == [("r0", (0, 1))]


def test_a_network_in_slow_motion_has_slower_links_and_one_latency() -> None:
    uplink = Uplink(name="rack", nodes=(0, 1), beta_us_per_MB=40.0)
    group = NodeGroup(name="pair", nodes=(0, 1), alpha_us=1.0, beta_us_per_MB=5.0)
    network = Network(kind="x", alpha_us=3.0, beta_us_per_MB=10.0, groups=(group,), uplinks=(uplink,))
    device = Device(model="d", kind="cpu", count=1)
    machine = Hardware(version=1, name="m", nodes=4, devices=(device,), network=network)
    slowed = slow_motion(machine, 10, 30).network
    assert slowed is not None
    assert (slowed.alpha_us, slowed.beta_us_per_MB, slowed.uplinks[0].beta_us_per_MB) == (30, 100, 400)
    assert (slowed.groups[0].alpha_us, slowed.groups[0].beta_us_per_MB) == (None, 50)
