"""Topology XML of NCCL and RCCL: hand-written files (`NCCL_TOPO_FILE`) and dumps (`NCCL_TOPO_DUMP_FILE`).

Dumps nest `<gpu>` with its `<nvlink>` or `<xgmi>` links, and `<nic><net>`, into `<pci>`. Hand-written files often have
nothing but `<pci class=...>`; there GPUs, NICs and PCIe switches are known by their PCI class code. The children of
a `<pci>` say more than its class, which differs between generations of a vendor. `<pci>` of class 0x0604 is one PCIe
switch: NCCL leaves out its downstream ports. A file of several hosts in one NVLink domain names the host of each
`<cpu>` (`host_hash`); bus ids and names are then only good within their host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from treadle.planner.documents.hardware import Hardware, Host
from treadle.probe.pcie_tree import (
    BRIDGE_CLASS,
    GPU_CLASSES,
    NIC_CLASSES,
    NVSWITCH_CLASS,
    Attachment,
    NicPort,
    PcieGpu,
    PciePlace,
    assemble,
    fabrics,
    merged,
    tree,
)
from treadle.probe.xml import Element, class_of, fault, number_of, parse_xml, text_of

_P9_BRIDGE = "0x068001"  # the NVLink of POWER9 leads to the CPU, not to another GPU


class _Gpu(NamedTuple):
    """A GPU; sorted, GPUs are in the order of their ranks."""

    host: int
    dev: int
    busid: str
    pci: Element
    place: PciePlace


@dataclass
class _Parts:
    where: str
    dumped: bool
    """Whether GPUs are marked by `<gpu>`; other display controllers are then no GPUs."""
    hosts: list[str]
    gpus: list[_Gpu] = field(default_factory=list)
    ports: dict[str, NicPort] = field(default_factory=dict)
    bridges: dict[str, PciePlace] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    host: int = 0
    """The host of the current `<cpu>` or GPU."""

    def named(self, name: str) -> str:
        """`name` of the current host, as it is called among those of all hosts."""
        return name if len(self.hosts) < 2 else f"host{self.host}/{name}"


def import_nccl(text: str, where: str, name: str) -> Hardware:
    """A profile without costs. GPUs are numbered host by host, by `dev` where the file has it, by bus id otherwise.

    Raises InputError with file and line for a file that is none of the dialects.
    """
    system = parse_xml(text, where, "system")
    cpus = system.findall("cpu")
    if not cpus:
        raise fault(system, where, "found <system> without <cpu>, expected at least one")
    hosts = [cpu.get("host_hash", "") for cpu in cpus]
    found = _Parts(where, system.find(".//gpu") is not None, list(dict.fromkeys(hosts)))
    numas = set()
    ranked = [
        (found.hosts.index(host), number, cpu) for number, (host, cpu) in enumerate(zip(hosts, cpus, strict=True))
    ]
    for found.host, number, cpu in sorted(ranked, key=lambda item: item[:2]):
        numa = number_of(cpu, "numaid", where)
        numa = number if numa >= 0 and len(found.hosts) > 1 else numa
        _walk(cpu, PciePlace((), numa if numa >= 0 else None), found)
        numas |= {numa} if numa >= 0 else set()
    gpus = sorted(found.gpus, key=lambda gpu: gpu[:3])
    for one, other in pairwise(gpus):
        if one[:2] == other[:2] and other.dev >= 0:
            raise fault(other.pci, where, f"found a second <gpu> with dev={other.dev}, expected each once")
    if not gpus:
        codes = sorted({str(pci.get("class")) for pci in system.iter("pci") if pci.get("class")})
        seen = f" among <pci> of class {', '.join(codes)}" if codes else ""
        expected = "expected <gpu>, or <pci> of class 0x0300, 0x0302, 0x0380 or 0x1200"
        raise fault(system, where, f"found no GPU{seen}, {expected}")
    links, attachments = _links(gpus, found)
    return assemble(
        name,
        "imported from NCCL topology XML",
        [PcieGpu(gpu.busid, _model(gpu.pci), gpu.place) for gpu in gpus],
        list(found.ports.values()),
        tree(found.bridges),
        merged(links),
        fabrics("nvswitch", attachments),
        Host(numa_nodes=len(numas) or None),
    )


def _links(gpus: list[_Gpu], found: _Parts) -> tuple[list[tuple[int, int, str, int]], list[Attachment]]:
    """The `<nvlink>` and `<xgmi>` of all GPUs. A link leads to the GPU whose bus id is its target, else to what its
    class says."""
    where = found.where
    ranks = {gpu.busid: rank for rank, gpu in enumerate(gpus)}
    links: list[tuple[int, int, str, int]] = []
    attachments: list[Attachment] = []
    for rank, gpu in enumerate(gpus):
        found.host = gpu.host
        for link in gpu.pci.iterfind("gpu/*"):
            if link.tag not in ("nvlink", "xgmi"):
                continue
            target, count = text_of(link, "target", where).lower(), number_of(link, "count", where, default=1)
            if count < 1:
                raise fault(link, where, f"found <{link.tag}> with count={count}, expected at least 1")
            code = link.get("tclass", "").lower()
            if code and class_of(code) is None:
                raise fault(link, where, f"found <{link.tag}> with tclass={code!r}, expected a PCI class code")
            other = ranks.get(found.named(target))
            if other is not None and other != rank:
                links.append((rank, other, str(link.tag), count))
            elif class_of(code) == NVSWITCH_CLASS:
                if code != _P9_BRIDGE:
                    attachments.append(Attachment(rank, target, count))
            elif other == rank or not code or class_of(code) in GPU_CLASSES:
                text = "of its own GPU" if other == rank else "of no GPU in the file"
                raise fault(
                    link,
                    where,
                    f"found <{link.tag}> with target={target!r}, the bus id {text}, expected that of another GPU",
                )
    return links, attachments


def _walk(parent: Element, place: PciePlace, found: _Parts) -> None:
    for child in parent.iterchildren():
        if child.tag == "nic":
            _ports(child, place, None, found)
        elif child.tag == "pci":
            _pci(child, place, found)


def _pci(pci: Element, place: PciePlace, found: _Parts) -> None:
    busid = found.named(text_of(pci, "busid", found.where).lower())
    if busid in found.seen:
        raise fault(pci, found.where, f"found <pci> with busid={busid!r} again, expected each bus id once")
    found.seen.add(busid)
    gpu, nic = pci.find("gpu"), pci.find("nic")
    code = _code(pci, found.where)
    if gpu is not None or (code in GPU_CLASSES and not found.dumped):
        dev = -1 if gpu is None else number_of(gpu, "dev", found.where, default=-1)
        found.gpus.append(_Gpu(found.host, dev, busid, pci, place))
    elif nic is not None:
        _ports(nic, place, busid, found)
    elif code in NIC_CLASSES:
        found.ports[busid] = NicPort(busid, place)
    else:
        if code == BRIDGE_CLASS:
            found.bridges[busid] = place
            place = PciePlace((*place.path, busid), place.numa)
        _walk(pci, place, found)


def _code(pci: Element, where: str) -> int | None:
    """The PCI class; files may leave it out where the children say what it is."""
    text = pci.get("class")
    if text is None and pci.find("gpu") is None and pci.find("nic") is None:
        if pci.find("pci") is not None:
            return BRIDGE_CLASS
        raise fault(pci, where, f"found <pci busid={pci.get('busid')!r}> without 'class', expected one")
    code = class_of(text or "")
    if text is not None and code is None:
        raise fault(pci, where, f"found <pci> with class={text!r}, expected a PCI class code such as 0x030200")
    return code


def _ports(nic: Element, place: PciePlace, busid: str | None, found: _Parts) -> None:
    where, mine = found.where, set[str]()
    for net in nic.iterfind("net"):
        name = net.get("name")
        name = found.named(name) if name else busid or found.named(f"net{number_of(net, 'dev', where)}")
        port = number_of(net, "port", where, default=1)
        if port > 1:
            name = f"{name}:{port}"
        # Some plugins give all NICs one name. A port is listed once more when it also offers in-network reduction.
        if name in found.ports and name not in mine:
            name = f"{name}@{busid or net.get('dev', len(found.ports))}"
        mine.add(name)
        if name not in found.ports:
            speed, gdr = number_of(net, "speed", where, default=0), net.get("gdr")
            found.ports[name] = NicPort(
                name, place, None if gdr is None else gdr == "1", speed / 1000 if speed > 0 else None
            )


def _model(pci: Element) -> str:
    gpu = pci.find("gpu")
    if gpu is not None and gpu.get("gcn"):
        name = str(gpu.get("gcn")).removeprefix("gfx")
        return f"gfx{'90a' if name == '910' else name}"  # older files have numbers, 910 for gfx90a
    if gpu is not None and gpu.get("sm"):
        return f"sm_{gpu.get('sm')}"
    vendor, device = pci.get("vendor"), pci.get("device")
    return f"PCI {vendor.removeprefix('0x')}:{device.removeprefix('0x')}" if vendor and device else "unknown GPU"
