"""lstopo XML (hwloc 2 and 3): PCIe bridges, GPUs and NICs, NUMA nodes, and the NVLink or xGMI bandwidth matrix.

A PCIe switch is an upstream port (a bridge) with downstream ports (bridges) under it. From a host bridge down a path
reads root port, then upstream and downstream ports in turn, so every bridge at even depth is one PCIe switch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from treadle.planner.documents.hardware import Hardware, Host, Link
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.probe.pcie_tree import (
    BRIDGE_CLASS,
    GPU_CLASSES,
    NIC_CLASSES,
    VGA_CLASS,
    Attachment,
    NicPort,
    PcieGpu,
    PciePlace,
    assemble,
    fabrics,
    tree,
)
from treadle.probe.xml import Element, class_of, fault, parse_xml, text_of

_GPU_BACKENDS = ("CUDA", "NVML", "RSMI", "LevelZero")
_MATRICES = {"NVLinkBandwidth": "nvlink", "XGMIBandwidth": "xgmi"}
_OPENFABRICS = {"2": "3", "3": "32"}
"""`osdev_type` of an RDMA device: a number in version 2, a bit mask since version 3."""


@dataclass
class _Parts:
    version: str
    gpus: list[PcieGpu] = field(default_factory=list)
    ports: list[NicPort] = field(default_factory=list)
    bridges: dict[str, PciePlace] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)


def import_lstopo(text: str, where: str, name: str) -> Hardware:
    """A profile whose beta comes from hwloc's MB/s (10^6 bytes) where it lists them; alpha stays absent.

    GPUs are numbered by bus id. Raises InputError with file and line for a file that is not lstopo's.
    """
    topology = parse_xml(text, where, "topology")
    version = topology.get("version", "1")
    if version.partition(".")[0] not in _OPENFABRICS:
        raise fault(topology, where, f"found hwloc XML of version {version!r}, expected 2 or 3")
    found = _Parts(version.partition(".")[0])
    _walk(topology, None, 0, PciePlace(), found, where)
    if not found.gpus:
        raise fault(topology, where, "found no GPU, expected a PCIDev of class 0300, 0302, 0380 or 1200")
    found.gpus.sort(key=lambda gpu: gpu.key)
    links, attachments, trunks = _matrices(topology, found, where)
    return assemble(
        name,
        "imported from lstopo XML; where links or switches have a beta, it is 2^20 B over the bandwidth hwloc lists",
        found.gpus,
        found.ports,
        tree(found.bridges),
        links,
        fabrics("nvswitch", attachments, trunks),
        _host(topology, where),
    )


def _walk(parent: Element, numa: int | None, depth: int, place: PciePlace, found: _Parts, where: str) -> None:
    for child in parent.iterchildren("object"):
        kind = text_of(child, "type", where)
        if kind == "Bridge":
            host = text_of(child, "bridge_type", where).startswith("0-")
            level, below = (0, PciePlace((), numa)) if host else (depth + 1, place)
            if not host and level % 2 == 0 and _class(child, where) == BRIDGE_CLASS:
                name = text_of(child, "pci_busid", where)
                found.bridges[name] = place
                below = PciePlace((*place.path, name), place.numa)
            _walk(child, numa, level, below, found, where)
        elif kind == "PCIDev":
            _device(child, place, found, where)
        else:
            own = _only_bit(child.get("nodeset"))
            _walk(child, numa if own is None else own, 0, place, found, where)


def _device(device: Element, place: PciePlace, found: _Parts, where: str) -> None:
    busid, code = text_of(device, "pci_busid", where), _class(device, where)
    inside = [child for child in device.iterchildren("object") if child.get("type") == "OSDev"]
    infos = {info.get("name", ""): info.get("value", "") for child in inside for info in child.iterchildren("info")}
    backends = {
        info.get("value") for child in inside for info in child.iterchildren("info") if info.get("name") == "Backend"
    }
    if device.get("subtype") == "NVSwitch":
        found.switches.add(busid)
    elif code in GPU_CLASSES and (code != VGA_CLASS or backends.intersection(_GPU_BACKENDS)):
        identity = re.search(r"\[([0-9a-f]{4}:[0-9a-f]{4})\]", text_of(device, "pci_type", where))
        model = infos.get("GPUModel") or (f"PCI {identity[1]}" if identity else "unknown GPU")
        kibibytes = infos.get("CUDAGlobalMemorySize", "")
        memory = int(kibibytes) * 1024 if kibibytes.isdecimal() and 0 < int(kibibytes) < 2**50 else None
        found.gpus.append(PcieGpu(busid, model, place, memory))
    elif code in NIC_CLASSES:
        rdma = [child for child in inside if child.get("osdev_type") == _OPENFABRICS[found.version]]
        names = [child.get("name") for child in (*rdma, *inside) if child.get("name")]
        found.ports.append(NicPort(names[0] or busid if names else busid, place, rdma=bool(rdma)))


def _matrices(
    topology: Element, found: _Parts, where: str
) -> tuple[list[Link], list[Attachment], list[tuple[str, str]]]:
    """Links between GPUs, links of GPUs into NVSwitches, and links between NVSwitches."""
    ranks = {gpu.key: rank for rank, gpu in enumerate(found.gpus)}
    owners = _owners(topology)
    links: dict[tuple[int, int], Link] = {}
    attachments, trunks = [], []
    for matrix in topology.iterchildren("distances2", "distances2hetero"):
        kind = _MATRICES.get(matrix.get("name", ""))
        if kind is None:
            continue
        keys = []
        for token in " ".join(part.text or "" for part in matrix.iterchildren("indexes")).split():
            owner = owners.get(token.rpartition(":")[2])
            if owner is None:
                raise fault(matrix, where, f"found index {token!r}, expected the gp_index of an object")
            keys.append(owner)
        words = " ".join(part.text or "" for part in matrix.iterchildren("u64values")).split()
        if len(words) != len(keys) ** 2 or not all(word.isdecimal() for word in words):
            raise fault(matrix, where, f"found {len(words)} values, expected {len(keys)} times {len(keys)} numbers")
        for place, word in enumerate(words):
            first, second = keys[place // len(keys)], keys[place % len(keys)]
            if int(word) == 0 or first == second:
                continue
            if first in ranks and second in ranks:
                ends = ranks[first], ranks[second]
                links[ends] = Link(src=ends[0], dst=ends[1], kind=kind, beta_us_per_MB=MEBIBYTE / int(word))
            elif first in ranks and second in found.switches:
                attachments.append(Attachment(ranks[first], second, 1, float(word)))
            elif first in found.switches and second in found.switches:
                trunks.append((first, second))
    return list(links.values()), attachments, trunks


def _owners(topology: Element) -> dict[str, str]:
    """gp_index -> bus id of the PCI device that the object is or belongs to, `` where it is none."""
    owners = {}
    for element in topology.iter("object"):
        device: Element | None = element
        while device is not None and device.get("type") == "OSDev":
            device = device.getparent()
        index = element.get("gp_index")
        if index is not None:
            owners[index] = device.get("pci_busid", "") if device is not None else ""
    return owners


def _host(topology: Element, where: str) -> Host:
    objects = list(topology.iter("object"))
    nodes = [element for element in objects if element.get("type") == "NUMANode"]
    memory = sum(number for element in nodes if (number := _size(element, where)))
    cores = sum(element.get("type") == "Core" for element in objects)
    models = [
        info.get("value")
        for element in objects
        for info in element.iterchildren("info")
        if info.get("name") == "CPUModel"
    ]
    return Host(
        cpu_cores=cores or None,
        memory_bytes=memory or None,
        cpu_model=models[0] if models and models[0] else None,
        numa_nodes=len(nodes) or None,
    )


def _size(element: Element, where: str) -> int:
    text = element.get("local_memory", "0")
    if not text.isdecimal() or len(text) > 18:
        raise fault(element, where, f"found local_memory={text!r}, expected bytes")
    return int(text)


def _class(element: Element, where: str) -> int | None:
    # pci_type reads "0604 [8086:2030] [8086:0000] 04 00"; a device that fell off the bus has class 0000.
    return class_of(text_of(element, "pci_type", where).split()[0])


def _only_bit(mask: str | None) -> int | None:
    """The number of the only bit of a mask such as `0x00000001` or `0x1,0x00000000`; absent otherwise."""
    try:
        value = int("".join(word.removeprefix("0x").zfill(8) for word in (mask or "0").split(",")), 16)
    except ValueError:
        return None
    return value.bit_length() - 1 if value and value & (value - 1) == 0 else None
