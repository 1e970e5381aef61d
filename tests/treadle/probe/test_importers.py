"""Importers: small samples of each dialect kept here, and real files where TREADLE_DATA has them.

The expected numbers were counted by hand in the files.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planner.documents.sources import source_of
from tests.planner.documents.test_hardware import numeric_leaves
from treadle.planner import resources
from treadle.planner.documents import store
from treadle.planner.documents.hardware import Hardware
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import expand, nic_rates
from treadle.probe.importer import costs_for, import_profile, with_costs
from treadle.probe.lstopo_xml import import_lstopo
from treadle.probe.nccl_xml import import_nccl
from treadle.probe.nvidia_smi import import_nvidia_smi
from treadle.probe.resolve import load_hardware

SAMPLES = Path(__file__).parent / "samples"
ALL = sorted(path.name for path in SAMPLES.iterdir())


def sample(name: str) -> Hardware:
    return import_profile(SAMPLES / name)


def shipped(name: str) -> Hardware:
    return store.load(resources.locate("profiles", name), Hardware)


def costs(hardware: Hardware) -> set[tuple[float | None, float | None]]:
    return {(part.alpha_us, part.beta_us_per_MB) for part in (*hardware.links, *hardware.switches)}


@pytest.mark.parametrize("name", ALL)
def test_an_import_is_a_sound_document_that_invents_no_latency(name, tmp_path):
    hardware = sample(name)
    assert hardware.nodes == 1
    assert hardware.name == Path(name).stem
    assert {alpha for alpha, _ in costs(hardware)} <= {None}
    store.save(hardware, tmp_path / "hw.json")
    assert store.load(tmp_path / "hw.json", Hardware) == hardware
    leaves = set(numeric_leaves(msgspec.to_builtins(hardware))) - {"version"}
    assert [path for path in leaves if not source_of(hardware, path)] == []


def test_nccl_hand_written_gpus_are_numbered_by_bus_id_and_paired_with_nics():
    hardware = sample("nccl_hand_written.xml")
    assert hardware.devices_per_node == 3
    assert [(pcie.name, pcie.numa, pcie.devices) for pcie in hardware.pcie] == [
        ("ffff:ff:01.0", 1, (1, 2)),
        ("ffff:ff:02.0", 0, (0,)),
    ]
    # GPU 0 is on the other CPU and goes first; the other two then have one NIC each, as close as they can be.
    users = {nic.name: nic.devices for nic in hardware.nics}
    assert sorted(device for devices in users.values() for device in devices) == [0, 1, 2]
    assert {nic.pcie for nic in hardware.nics} == {"ffff:ff:01.0"}
    assert hardware.links == ()
    assert hardware.switches == ()
    assert hardware.host.numa_nodes == 2


def test_nccl_dump_behind_nvswitch():
    hardware = sample("nccl_dump_nvswitch.xml")
    assert [(device.model, device.count) for device in hardware.devices] == [("sm_80", 3)]
    assert [(s.kind, s.members, s.count) for s in hardware.switches] == [("nvswitch", (0, 1, 2), 4)]
    assert [(pcie.name, pcie.devices) for pcie in hardware.pcie] == [("0000:05:00.0", (0, 1))]
    assert [(nic.name, nic.devices, nic.speed_gbps, nic.gpudirect) for nic in hardware.nics] == [
        ("mlx5_0", (0, 1), 200.0, True),
        ("eth0", (2,), 10.0, False),
    ]
    assert hardware.nics[1].pcie is None


def test_nccl_dump_with_direct_nvlinks_adds_up_and_leaves_out_the_cpu():
    hardware = sample("nccl_dump_nvlink.xml")
    assert [(link.src, link.dst, link.kind, link.count) for link in hardware.links] == [
        (0, 1, "nvlink", 3),
        (1, 0, "nvlink", 3),
    ]
    assert hardware.switches == ()


def test_rccl_dump():
    hardware = sample("rccl_dump_xgmi.xml")
    assert [(device.model, device.count) for device in hardware.devices] == [("gfx942", 2)]
    assert [(link.src, link.dst, link.kind, link.count) for link in hardware.links] == [
        (0, 1, "xgmi", 1),
        (1, 0, "xgmi", 1),
    ]
    assert [(pcie.name, pcie.parent) for pcie in hardware.pcie] == [
        ("0000:05:00.0", None),
        ("0000:08:00.0", "0000:05:00.0"),
        ("0000:0e:00.0", None),
    ]
    assert [(nic.name, nic.pcie, nic.speed_gbps) for nic in hardware.nics] == [("mlx5_0", "0000:05:00.0", 400.0)]


def test_rccl_generations_differ_in_class_and_attributes():
    """MI50 to MI250 are PCI class 0x0380; what a <pci> holds counts, and what a link leads to, not its class."""
    hardware = sample("rccl_mi250_two_dies.xml")
    assert [(device.model, device.count) for device in hardware.devices] == [("gfx90a", 3)]
    # The GPU without `dev` goes first; of its two links of one each, a link of count 2 is made.
    assert [(link.src, link.dst, link.kind, link.count) for link in hardware.links] == [
        (0, 1, "xgmi", 2),
        (1, 0, "xgmi", 2),
        (1, 2, "xgmi", 4),
        (2, 1, "xgmi", 4),
    ]
    assert [(nic.name, nic.devices, nic.speed_gbps, nic.gpudirect) for nic in hardware.nics] == [
        ("mlx5_0", (1,), 200.0, True),
        ("mlx5_0:2", (2,), 200.0, True),
        ("eth0", (), 1.0, False),
        ("0000:23:00.0", (0,), None, None),
    ]


@pytest.mark.parametrize("code", ["0x030000", "0x030200", "0x038000", "0x120000"])
def test_every_class_of_accelerator_is_one(code):
    text = (SAMPLES / "nccl_four_nics_a_gpu.xml").read_text().replace("0x030200", code)
    assert import_nccl(text, "x", "x").devices_per_node == 2


def test_a_file_without_gpus_is_refused_with_the_classes_it_has():
    text = (SAMPLES / "nccl_four_nics_a_gpu.xml").read_text().replace("0x030200", "0x010800")
    reason = "x:2: found no GPU among <pci> of class 0x010800, 0x020000, 0x060400, expected <gpu>, or <pci> of class"
    with pytest.raises(InputError, match=reason):
        import_nccl(text, "x", "x")


def test_a_gpu_has_every_nic_that_is_as_close_and_as_fast():
    hardware = sample("nccl_four_nics_a_gpu.xml")
    users = {nic.name: nic.devices for nic in hardware.nics}
    assert users == {f"rdma{i}": (i // 4,) for i in range(8)} | {"ens0": ()}
    assert {nic.speed_gbps for nic in hardware.nics if nic.devices} == {100.0}


def test_nics_of_one_name_are_several_nics():
    text = (SAMPLES / "nccl_four_nics_a_gpu.xml").read_text()
    hardware = import_nccl(re.sub('name="rdma[0-9]"', 'name="efa"', text), "x", "x")
    assert [nic.devices for nic in hardware.nics] == [(0,)] * 4 + [(1,)] * 4 + [()]
    assert hardware.nics[1].name == "efa@0000:50:00.0"


def test_hosts_of_one_nvlink_domain_keep_their_own_names():
    hardware = sample("nccl_two_hosts.xml")
    assert [(s.members, s.count) for s in hardware.switches] == [((0, 1, 2), 18)]
    assert [(nic.name, nic.devices) for nic in hardware.nics] == [("host0/mlx5_0", (0, 1)), ("host1/mlx5_0", (2,))]
    assert hardware.host.numa_nodes == 2


def test_nvidia_smi_old_columns():
    hardware = sample("smi_old.txt")
    assert hardware.devices_per_node == 3
    assert [(link.src, link.dst, link.count) for link in hardware.links] == [(0, 1, 2), (1, 0, 2)]
    assert [(pcie.devices, pcie.numa) for pcie in hardware.pcie] == [((0, 1), None)]
    assert [(nic.name, nic.devices) for nic in hardware.nics] == [("mlx5_0", (0, 1, 2))]
    assert hardware.host.numa_nodes == 2


def test_nvidia_smi_new_columns_escapes_legend_and_a_switch_behind_equal_nvlinks():
    hardware = sample("smi_new.txt")
    assert hardware.links == ()
    assert [(s.members, s.count) for s in hardware.switches] == [((0, 1, 2, 3), 12)]
    assert [(nic.name, nic.devices) for nic in hardware.nics] == [
        ("mlx5_0", (0,)),
        ("mlx5_1", (1,)),
        ("mlx5_bond_0", (2, 3)),
    ]
    # GPU0, GPU1 and both NICs meet behind several switches (PXB), of which one joins the NICs; GPU2 and NIC2 share one.
    assert [(pcie.name, pcie.parent, pcie.devices) for pcie in hardware.pcie] == [
        ("pxb0", None, (0, 1)),
        ("pix0", None, (2,)),
        ("pix1", "pxb0", ()),
    ]
    assert hardware.host.numa_nodes == 2


def test_nvidia_smi_without_nvlink_joins_the_gpus_by_pcie_and_says_so():
    text = (SAMPLES / "smi_old.txt").read_text().replace("NV2", "PHB")
    hardware = import_nvidia_smi(text, "x", "cards")
    assert hardware.links == ()
    assert [(s.kind, s.members, s.alpha_us) for s in hardware.switches] == [("pcie", (0, 1, 2), None)]
    assert hardware.sources["switches"].startswith("assumed: without NVLink")
    costed = with_costs(hardware, load_hardware("cluster-25gbe"))
    assert costed.switches[0].alpha_us == 5


def test_costs_for_names_the_shipped_profiles_that_have_all_kinds():
    switched = sample("smi_new.txt")
    assert costs_for(switched) == ["dgx2", "ndv4", "ndv5"]
    with pytest.raises(InputError, match=r"ndv2: found no costs .* 'nvswitch', expected one, as dgx2, ndv4, ndv5 have"):
        with_costs(switched, load_hardware("ndv2"))


def test_a_byte_order_mark_before_the_matrix_changes_nothing(tmp_path):
    (tmp_path / "smi_new.txt").write_text("\ufeff" + (SAMPLES / "smi_new.txt").read_text())
    assert import_profile(tmp_path / "smi_new.txt") == sample("smi_new.txt")


def test_nvidia_smi_pasted_with_blanks_reads_the_same():
    text = (SAMPLES / "smi_new.txt").read_text()
    assert import_nvidia_smi(text.expandtabs(8), "x", "smi_new") == sample("smi_new.txt")
    assert import_nvidia_smi("$ nvidia-smi topo -m\n" + text, "x", "smi_new") == sample("smi_new.txt")


def test_lstopo_of_hwloc_2():
    hardware = sample("lstopo_v2.xml")
    assert [(d.model, d.count, d.memory_bytes) for d in hardware.devices] == [("Tesla V100", 2, 16 * 2**30)]
    assert [(link.src, link.dst, link.beta_us_per_MB) for link in hardware.links] == [
        (0, 1, pytest.approx(2**20 / 50000)),
        (1, 0, pytest.approx(2**20 / 50000)),
    ]
    # The root port and the downstream ports are no switches; the VGA chip without a GPU backend is no GPU.
    assert [(pcie.name, pcie.numa, pcie.devices) for pcie in hardware.pcie] == [("0000:01:00.0", 0, (0,))]
    # The plain Ethernet card is listed, but GPUs send through the RDMA one.
    assert [(nic.name, nic.devices) for nic in hardware.nics] == [("mlx5_0", (0, 1)), ("eth0", ())]
    assert hardware.host.cpu_model == "A CPU"
    assert hardware.host.memory_bytes == 2_000_000
    assert (hardware.host.cpu_cores, hardware.host.numa_nodes) == (2, 2)


def test_lstopo_switches_joined_by_trunks_are_one_fabric():
    hardware = sample("lstopo_v3_trunks.xml")
    assert [(s.members, s.count, s.beta_us_per_MB) for s in hardware.switches] == [
        ((0, 1), 1, pytest.approx(2**20 / 25000))
    ]
    assert hardware.devices[0].model == "PCI 10de:1db8"


# GPUs, NICs, directed links with multiplicity, links into switches, PCIe switches
REAL = {
    "azure-ndv4-a100x8.nccl-topo.xml": (8, 8, 0, 0, 4),
    "azure-ndv5-h100x8.nccl-topo.xml": (8, 8, 0, 0, 8),
    # each GPU sits below three nested bridges
    "rccl-mi300x8.rccl-topo.xml": (8, 8, 56, 0, 24),
    # 8 GPUs with 6 links each
    "dgx1-v100x8.nvidia-smi-topo-m.txt": (8, 4, 48, 0, 4),
    # 60 bridges: 4 host bridges, 4 root ports, 38 downstream ports, so 14 upstream ports; 16 GPUs with 6 links each
    "nvidia-dgx2.lstopo.xml": (16, 0, 0, 96, 14),
}


@pytest.mark.parametrize("name", sorted(REAL))
def test_real_files_have_the_right_number_of_everything(name, data_dir):
    hardware = import_profile(data_dir / "topologies" / name)
    found = (
        hardware.devices_per_node,
        len(hardware.nics),
        sum(link.count for link in hardware.links),
        sum(switch.count * len(switch.members) for switch in hardware.switches),
        len(hardware.pcie),
    )
    assert found == REAL[name]
    used = Counter(device for nic in hardware.nics for device in nic.devices)
    assert not hardware.nics or used == Counter(range(hardware.devices_per_node))


def test_the_real_dgx1_is_the_shipped_dgx1(data_dir):
    real, ours = import_profile(data_dir / "topologies" / "dgx1-v100x8.nvidia-smi-topo-m.txt"), shipped("dgx1")
    assert {(a.src, a.dst, a.count) for a in real.links} == {(a.src, a.dst, a.count) for a in ours.links}
    assert sorted(nic.devices for nic in real.nics) == sorted(nic.devices for nic in ours.nics)
    assert {pcie.devices for pcie in real.pcie} == {pcie.devices for pcie in ours.pcie}
    copied = with_costs(real, ours)
    assert expand(copied).links == expand(ours).links


def test_the_real_mi300x_and_ndv4_are_the_shipped_ones(data_dir):
    real, ours = import_profile(data_dir / "topologies" / "rccl-mi300x8.rccl-topo.xml"), shipped("mi300x")
    assert expand(with_costs(real, ours)).links == expand(ours).links
    real, ours = import_profile(data_dir / "topologies" / "azure-ndv4-a100x8.nccl-topo.xml"), shipped("ndv4")
    places = {(pcie.numa, pcie.devices) for pcie in real.pcie}
    assert places == {(pcie.numa, pcie.devices) for pcie in ours.pcie}
    assert sorted(nic.devices for nic in real.nics) == sorted(nic.devices for nic in ours.nics)


def test_the_real_dgx2_has_the_shipped_pcie_pairs_and_the_bandwidth_that_hwloc_lists(data_dir):
    real, ours = import_profile(data_dir / "topologies" / "nvidia-dgx2.lstopo.xml"), shipped("dgx2")
    assert {pcie.devices for pcie in real.pcie} == {pcie.devices for pcie in ours.pcie}
    # The file lists no links between the NVSwitches of the two boards, so it shows two fabrics of 8.
    assert [switch.members for switch in real.switches] == [tuple(range(8)), tuple(range(8, 16))]
    assert {beta for _, beta in costs(real)} == {2**20 / 25000}
    filled = with_costs(real, ours)
    assert costs(filled) == {(0.7, 2**20 / 25000)}


def test_costs_are_copied_by_kind_and_the_sources_say_so():
    hardware = with_costs(sample("nccl_dump_nvswitch.xml"), shipped("ndv4"))
    (switch,) = hardware.switches
    assert switch.alpha_us == 0.7
    assert switch.beta_us_per_MB / switch.count == pytest.approx(3.49525)
    assert hardware.network == shipped("ndv4").network
    assert "copied from profile ndv4" in hardware.sources["switches"]
    assert "copied" not in hardware.sources["pcie"]
    expand(hardware)
    with pytest.raises(InputError, match="ndv4: found no costs for links of kind 'xgmi'"):
        with_costs(sample("rccl_dump_xgmi.xml"), shipped("ndv4"))
    with pytest.raises(InputError, match="--costs-from"):
        expand(sample("rccl_dump_xgmi.xml"))


def test_the_network_that_is_copied_is_for_the_speed_of_the_nics():
    hardware, ndv5 = sample("nccl_four_nics_a_gpu.xml"), shipped("ndv5")
    copied = with_costs(hardware, ndv5)
    assert copied.network.beta_us_per_MB == pytest.approx(4 * ndv5.network.beta_us_per_MB)
    assert "for a NIC of 100 instead of 400 Gb/s" in copied.sources["network"]
    # Four NICs of a quarter of the speed: what a GPU gets is the same.
    (rate,) = set(nic_rates(copied))
    assert copied.network.beta_us_per_MB / rate == pytest.approx(ndv5.network.beta_us_per_MB)


def broken(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("nccl_hand_written.xml", "</system>", "", r":\d+: found broken XML"),
        ("nccl_hand_written.xml", 'numaid="1"', 'numaid="one"', r":3: found <cpu> with numaid='one', expected a"),
        ("nccl_hand_written.xml", 'numaid="1"', "", r":3: found <cpu> without 'numaid'"),
        ("nccl_hand_written.xml", "0101:00:00.0", "0102:00:00.0", r":8: found <pci> with busid='0102:00:00.0' again"),
        (
            "nccl_hand_written.xml",
            'class="0x030200"',
            'class="gpu"',
            r":5: found <pci> with class='gpu', expected a PCI",
        ),
        ("nccl_hand_written.xml", 'class="0x030200"', "", r":5: found <pci busid='000B:00:00.0'> without 'class'"),
        ("nccl_hand_written.xml", 'busid="000B:00:00.0"', "", r":5: found <pci> without 'busid'"),
        (
            "nccl_dump_nvlink.xml",
            'target="0004:04:00.0"',
            'target="9:9"',
            r":12: found <nvlink> with target='9:9', the bus id of no GPU",
        ),
        (
            "nccl_dump_nvlink.xml",
            'count="3" tclass="0x03',
            'count="0" tclass="0x03',
            r":12: found <nvlink> with count=0, expected at least 1",
        ),
        ("nccl_dump_nvlink.xml", 'dev="1"', 'dev="0"', r":10: found a second <gpu> with dev=0"),
        (
            "nccl_dump_nvlink.xml",
            'tclass="0x03',
            'tclass="x0x03',
            r":5: found <nvlink> with tclass='x0x030200', expected a PCI",
        ),
        ("nccl_dump_nvlink.xml", "<system", "<!DOCTYPE system [<!ENTITY a 'b'>]><system", "entity declarations"),
        ("smi_old.txt", "GPU0\tGPU1\tGPU2", "card0\tcard1\tcard2", "found no header with GPU0"),
        ("smi_old.txt", "NV2", "NV3", r":2: found NV3 from GPU0 to GPU1 but NV2 back"),
        ("smi_old.txt", "PHB", "FOO", r":2: found cell 'FOO'"),
        ("smi_old.txt", "GPU1\tNV2\t X \tSOC\tPIX\t0-9\n", "", "found no row GPU1"),
        ("smi_old.txt", "GPU2\tPHB\tSOC\t X \tSOC\t10-19", "GPU2\tPHB\tSOC", r":4: found 2 cells, expected 4"),
        ("lstopo_v2.xml", 'version="2.0"', 'version="1.9"', r":3: found hwloc XML of version '1.9'"),
        ("lstopo_v2.xml", "10 21", "10 99", "found index '99'"),
        ("lstopo_v2.xml", "0 50000 50000 0", "0 50000 50000", "found 3 values, expected 2 times 2"),
        ("lstopo_v2.xml", 'local_memory="1000000"', 'local_memory="lots"', r":7: found local_memory='lots'"),
        ("lstopo_v2.xml", 'pci_busid="0000:04:00.0"', "", r":14: found <object> without 'pci_busid'"),
    ],
)
def test_malformed_files_name_file_and_line(name, old, new, message, tmp_path):
    file = tmp_path / name
    file.write_text(broken((SAMPLES / name).read_text(), old, new))
    with pytest.raises(InputError) as caught:
        import_profile(file)
    assert str(caught.value).startswith(str(file))
    assert re.search(message, str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "hello", "<html></html>", "<system/>", "<topology version='3.0'/>", "<", "\0"])
def test_other_files_are_refused(text, tmp_path):
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(InputError):
        import_profile(file)


def test_entities_are_never_expanded(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0004:05:00.0")
    text = (SAMPLES / "nccl_dump_nvlink.xml").read_text()
    file = tmp_path / "bomb.xml"
    file.write_text(f'<!DOCTYPE system [<!ENTITY x SYSTEM "{secret}">]>' + text.replace("<gpu ", "&x;<gpu ", 1))
    with pytest.raises(InputError, match="entity declarations"):
        import_profile(file)


@given(st.data())
def test_mutated_files_raise_nothing_but_our_error(data):
    name = data.draw(st.sampled_from(ALL))
    text = (SAMPLES / name).read_text()
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 40)))
        text = text[:start] + data.draw(st.text(alphabet='<>/"= 0123456789abxGPUNIV\n\t&;', max_size=8)) + text[end:]
    read = import_nvidia_smi if name.endswith("txt") else import_lstopo if "lstopo" in name else import_nccl
    with suppress(InputError):
        assert read(text, "file", "name").devices_per_node > 0
