"""Topology XML of NCCL and RCCL: hand-written files (`NCCL_TOPO_FILE`) and dumps (`NCCL_TOPO_DUMP_FILE`).

Dumps nest `<gpu>` with its `<nvlink>` or `<xgmi>` links, and `<nic><net>`, into `<pci>`. Hand-written files often have
nothing but `<pci class=...>`; there GPUs, NICs and PCIe switches are known by their PCI class code. `<pci>` of class
0x0604 is one PCIe switch: NCCL leaves out its downstream ports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from planner.hardware import Hardware, Host
from treadle.probe.pcie_tree import (
    BRIDGE_CLASS,
    GPU_CLASSES,
    NIC_CLASSES,
    NVSWITCH_CLASS,
    Attachment,
    Gpu,
    Place,
    Port,
    assemble,
    fabrics,
    merged,
    tree,
)
from treadle.probe.xml import Element, class_of, fault, number_of, parse_xml, text_of

_P9_BRIDGE = "0x068001"  # the NVLink of POWER9 leads to the CPU, not to another GPU


@dataclass
class _Found:
    gpus: list[tuple[int, str, Element, Place]] = field(default_factory=list)
    ports: dict[str, Port] = field(default_factory=dict)
    bridges: dict[str, Place] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)


def import_nccl(text: str, where: str, name: str) -> Hardware:
    """A profile without costs. GPUs are numbered by `dev` where the file has it, by bus id otherwise.

    Raises InputError with file and line for a file that is none of the dialects.
    """
    system = parse_xml(text, where, "system")
    cpus = system.findall("cpu")
    if not cpus:
        raise fault(system, where, "found <system> without <cpu>, expected at least one")
    dumped = system.find(".//gpu") is not None
    found = _Found()
    for cpu in cpus:
        numa = number_of(cpu, "numaid", where)
        _walk(cpu, Place((), numa if numa >= 0 else None), found, dumped, where)
    if not found.gpus:
        raise fault(system, where, "found no GPU, expected <gpu> or <pci> of class 0x0302, 0x0300 or 0x1200")
    ordered = sorted(found.gpus, key=lambda gpu: gpu[:2])
    _require_distinct(ordered, where)
    ranks = {busid: rank for rank, (_, busid, _, _) in enumerate(ordered)}
    links, attachments = [], []
    for rank, (_, _, pci, _) in enumerate(ordered):
        for link in pci.iterfind("gpu/*"):
            if link.tag not in ("nvlink", "xgmi"):
                continue
            target, count = text_of(link, "target", where).lower(), number_of(link, "count", where)
            code = text_of(link, "tclass", where).lower()
            if count < 1:
                raise fault(link, where, f"found count={count}, expected at least 1")
            if class_of(code) in GPU_CLASSES:
                if target not in ranks or ranks[target] == rank:
                    raise fault(link, where, f"found a link to {target!r}, expected the bus id of another GPU")
                links.append((rank, ranks[target], str(link.tag), count))
            elif class_of(code) == NVSWITCH_CLASS and code != _P9_BRIDGE:
                attachments.append(Attachment(rank, target, count))
    numas = {place.numa for *_, place in ordered if place.numa is not None}
    numas |= {number for cpu in cpus if (number := number_of(cpu, "numaid", where)) >= 0}
    return assemble(
        name,
        "imported from NCCL topology XML",
        [Gpu(busid, _model(pci), place) for _, busid, pci, place in ordered],
        list(found.ports.values()),
        tree(found.bridges),
        merged(links),
        fabrics("nvswitch", attachments),
        Host(numa_nodes=len(numas) or None),
    )


def _walk(parent: Element, place: Place, found: _Found, dumped: bool, where: str) -> None:
    for child in parent.iterchildren():
        if child.tag == "nic":
            _ports(child, place, None, found, where)
        elif child.tag == "pci":
            _pci(child, place, found, dumped, where)


def _pci(pci: Element, place: Place, found: _Found, dumped: bool, where: str) -> None:
    busid = text_of(pci, "busid", where).lower()
    if busid in found.seen:
        raise fault(pci, where, f"found bus id {busid!r} again, expected each once")
    found.seen.add(busid)
    code = _code(pci, where)
    if code in GPU_CLASSES and (pci.find("gpu") is not None or not dumped):
        gpu = pci.find("gpu")
        dev = 0 if gpu is None else number_of(gpu, "dev", where)
        found.gpus.append((dev, busid, pci, place))
    elif code in NIC_CLASSES:
        nic = pci.find("nic")
        if nic is None:
            found.ports[busid] = Port(busid, place)
        else:
            _ports(nic, place, busid, found, where)
    else:
        if code == BRIDGE_CLASS:
            found.bridges[busid] = place
            place = Place((*place.path, busid), place.numa)
        _walk(pci, place, found, dumped, where)


def _code(pci: Element, where: str) -> int:
    text = pci.get("class")
    if text is None:  # hand-written files may leave it out where the children say what it is
        for child, code in (("pci", BRIDGE_CLASS), ("gpu", GPU_CLASSES[0]), ("nic", NIC_CLASSES[0])):
            if pci.find(child) is not None:
                return code
    code_number = class_of(text_of(pci, "class", where))
    if code_number is None:
        raise fault(pci, where, f"found class={text!r}, expected a PCI class code such as 0x030200")
    return code_number


def _ports(nic: Element, place: Place, busid: str | None, found: _Found, where: str) -> None:
    for net in nic.iterfind("net"):
        name = net.get("name") or busid or f"net{number_of(net, 'dev', where)}"
        port = number_of(net, "port", where, default=1)
        if port > 1:
            name = f"{name}:{port}"
        # A port is listed once more when it also offers in-network reduction (coll="1").
        if name not in found.ports:
            speed, gdr = number_of(net, "speed", where, default=0), net.get("gdr")
            found.ports[name] = Port(
                name, place, None if gdr is None else gdr == "1", speed / 1000 if speed > 0 else None
            )


def _model(pci: Element) -> str:
    gpu = pci.find("gpu")
    if gpu is not None and gpu.get("gcn"):
        return str(gpu.get("gcn"))
    if gpu is not None and gpu.get("sm"):
        return f"sm_{gpu.get('sm')}"
    vendor, device = pci.get("vendor"), pci.get("device")
    return f"PCI {vendor.removeprefix('0x')}:{device.removeprefix('0x')}" if vendor and device else "unknown GPU"


def _require_distinct(ordered: list[tuple[int, str, Element, Place]], where: str) -> None:
    devs = [(dev, pci) for dev, _, pci, _ in ordered if pci.find("gpu") is not None]
    for (dev, _), (other, pci) in pairwise(devs):
        if dev == other:
            raise fault(pci, where, f"found a second GPU with dev={dev}, expected each once")
