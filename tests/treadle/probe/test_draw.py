"""Pictures: every part is there, the same input gives the same text, and what cannot be drawn is refused."""

from __future__ import annotations

import builtins
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from msgspec.structs import replace

from treadle.planner import resources
from treadle.planner.documents.hardware import Device, Hardware, PcieSwitch, Uplink
from treadle.planner.errors import InputError, MissingBackendError
from treadle.probe.draw import topology_svg
from treadle.probe.draw_layout import arrange
from treadle.probe.resolve import load_hardware

NAMES = resources.names("profiles")


def texts(svg: str) -> list[str]:
    root = etree.fromstring(svg.encode())
    return ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_profile_can_be_drawn_and_inlined(name):
    pytest.importorskip("matplotlib")
    hardware = load_hardware(name)
    svg = topology_svg(hardware)
    assert svg.startswith("<svg")
    shown = texts(svg)
    assert shown[0].startswith(f"{name}: ")
    nodes = min(hardware.nodes, 16 if hardware.network and hardware.network.uplinks else 4)
    for rank in range(hardware.devices_per_node * nodes):
        assert shown.count(str(rank)) == 1
    for nic in hardware.nics:
        assert shown.count(nic.name) == nodes


def test_racks_are_drawn_with_their_uplinks_and_their_nodes_next_to_each_other():
    pytest.importorskip("matplotlib")
    hardware = load_hardware("racks-2x4")
    names = ["rack 0: 1.25 GB/s", "rack 1: 1.25 GB/s"]
    assert [text for text in texts(topology_svg(hardware)) if text.startswith("rack ")] == names
    network = hardware.network
    row, pair, other = (
        Uplink(name=name, nodes=nodes, beta_us_per_MB=100)
        for name, nodes in (("row", (1, 3, 5, 7)), ("pair", (5, 7)), ("other", (0, 2)))
    )
    mixed = replace(hardware, network=replace(network, uplinks=(pair, row, other)))
    shown = texts(topology_svg(mixed))
    assert [text for text in shown if text.startswith("node ")] == [f"node {n}" for n in (5, 7, 1, 3, 0, 2, 4, 6)]
    assert "uplink row of 4 nodes: 10.49 GB/s per direction" in shown
    many = texts(topology_svg(replace(mixed, nodes=10**11)))
    assert [text for text in many if text.startswith("node ")] == [
        f"node {n}" for n in (5, 7, 1, 3, 0, 2, 4, 6, *range(8, 16))
    ]


def test_the_same_input_gives_the_same_text_without_dates_or_versions():
    pytest.importorskip("matplotlib")
    hardware = load_hardware("ndv2", 2)
    svg = topology_svg(hardware, {(0, 8): 2.0, (1, 0): 1.0})
    assert svg == topology_svg(hardware, {(1, 0): 1.0, (0, 8): 2.0})
    assert "<dc:date>" not in svg
    assert "matplotlib" not in svg.lower()


def test_the_legend_tells_costs_per_kind():
    pytest.importorskip("matplotlib")
    shown = texts(topology_svg(load_hardware("ndv2")))
    assert "nvlink: 0.7 us + 46 us/MiB (22.8 GB/s)" in shown
    assert "nvlink x 2: 0.7 us + 23 us/MiB (45.59 GB/s)" in shown
    assert "ib between nodes, per NIC: 1.7 us + 106 us/MiB (9.892 GB/s)" in shown


def test_highlights_are_drawn_over_pale_links_and_may_name_ranks_out_of_sight():
    pytest.importorskip("matplotlib")
    hardware = load_hardware("dgx2", 8)
    plain, lit = topology_svg(hardware), topology_svg(hardware, {(0, 16): 1.0, (0, 127): 1.0, (3, 3): 1.0})
    assert "traffic, as wide as its volume" in texts(lit)
    assert "traffic, as wide as its volume" not in texts(plain)
    assert "(the first 4 drawn)" in texts(plain)[0]


def test_too_many_devices_are_refused():
    hardware = Hardware(version=1, name="big", nodes=1, devices=(Device(model="x", kind="gpu", count=2**40),))
    with pytest.raises(InputError, match="expected at most 64"):
        topology_svg(hardware)


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingBackendError, match=r"pip install 'treadle\[report\]'"):
        topology_svg(load_hardware("ring4"))


@given(st.sampled_from(NAMES))
def test_no_two_parts_of_a_node_lie_on_each_other(name):
    panel = arrange(load_hardware(name))
    parts = [*panel.devices, *panel.pcie.values(), *panel.nics.values()]
    for (x, y), (other_x, other_y) in combinations(parts, 2):
        assert (x - other_x) ** 2 + (y - other_y) ** 2 > 0.4**2
    assert all(abs(x) <= panel.half_width and panel.bottom <= y <= panel.top for x, y in parts)


def test_pcie_switches_without_devices_find_a_place():
    hardware = load_hardware("dgx2")
    extra = tuple(PcieSwitch(name=f"extra{index}", parent="root0") for index in range(3))
    panel = arrange(replace(hardware, pcie=(*hardware.pcie, *extra)))
    places = [panel.pcie[pcie.name] for pcie in (*hardware.pcie, *extra)]
    assert len(set(places)) == len(places)
