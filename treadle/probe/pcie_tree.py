"""From the parts that an importer found to a hardware profile: numbering, who uses which NIC, what a fabric joins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import networkx as nx
from msgspec.structs import replace

from treadle.planner.documents.hardware import VERSION, Device, Hardware, Host, Link, Nic, PcieSwitch, Switch
from treadle.planner.documents.scalars import MEBIBYTE

VGA_CLASS = 0x0300
GPU_CLASSES = (VGA_CLASS, 0x0302, 0x0380, 0x1200)
"""VGA and 3D controllers, other display controllers (AMD MI50 to MI250), processing accelerators (MI300)."""
NIC_CLASSES = (0x0200, 0x0207)
BRIDGE_CLASS = 0x0604
NVSWITCH_CLASS = 0x0680


@dataclass(frozen=True)
class PciePlace:
    """Where a device sits: PCIe switches from the CPU down, and the NUMA node of that CPU."""

    path: tuple[str, ...] = ()
    numa: int | None = None

    def closeness(self, other: PciePlace) -> int:
        """Shared PCIe switches + 1 on the same CPU, 0 across CPUs or where that is unknown."""
        if self.path[:1] != other.path[:1] or not self.path:
            return int(self.numa is not None and self.numa == other.numa)
        shared = (1 for mine, theirs in zip(self.path, other.path, strict=False) if mine == theirs)
        return 1 + sum(shared)


@dataclass(frozen=True)
class PcieGpu:
    key: str
    model: str
    place: PciePlace
    memory_bytes: int | None = None


@dataclass(frozen=True)
class NicPort:
    name: str
    place: PciePlace
    gpudirect: bool | None = None
    speed_gbps: float | None = None
    rdma: bool = True


@dataclass(frozen=True)
class Attachment:
    """One member's link into a switch: `count` parallel links of `megabytes_per_s` (10^6 bytes) each."""

    gpu: int
    switch: str
    count: int = 1
    megabytes_per_s: float | None = None


def assemble(
    name: str,
    source: str,
    gpus: list[PcieGpu],
    ports: list[NicPort],
    bridges: Sequence[PcieSwitch],
    links: Iterable[Link],
    switches: Iterable[Switch] = (),
    host: Host | None = None,
) -> Hardware:
    """A one-node profile; ranks are positions in `gpus`. `source` says where every number comes from."""
    below = {
        bridge.name: tuple(rank for rank, gpu in enumerate(gpus) if gpu.place.path[-1:] == (bridge.name,))
        for bridge in bridges
    }
    runs = [list(run) for _, run in groupby(gpus, key=lambda gpu: (gpu.model, gpu.memory_bytes))]
    hardware = Hardware(
        version=VERSION,
        name=name,
        nodes=1,
        devices=tuple(
            Device(model=run[0].model, kind="gpu", count=len(run), memory_bytes=run[0].memory_bytes) for run in runs
        ),
        host=host or Host(),
        links=tuple(sorted(links, key=lambda link: (link.src, link.dst, link.kind))),
        switches=tuple(switches),
        nics=_nics(gpus, ports),
        pcie=tuple(
            PcieSwitch(name=bridge.name, parent=bridge.parent, numa=bridge.numa, devices=below[bridge.name])
            for bridge in bridges
        ),
    )
    described = ("devices", "host", "links", "switches", "nics", "pcie")
    sources = {field: source for field in described if getattr(hardware, field) not in ((), Host())}
    return replace(hardware, sources={"nodes": "one node: the one the file describes", **sources})


def _nics(gpus: list[PcieGpu], ports: list[NicPort]) -> tuple[Nic, ...]:
    """Each GPU sends through its closest port; of equally close ones through the one with the fewest GPUs so far.

    A port that is then still without a GPU goes to one that has no closer port and none of another speed, so that a GPU
    among several NICs has them all, and a slow or far one (management, storage) stays unused.
    """
    usable = [index for index, port in enumerate(ports) if port.rdma] or list(range(len(ports)))
    users: dict[int, list[int]] = {index: [] for index in range(len(ports))}
    first: list[NicPort] = []
    for rank, gpu in enumerate(gpus):
        if usable:
            best = min(usable, key=lambda i: (-gpu.place.closeness(ports[i].place), len(users[i]), i))
            users[best].append(rank)
            first.append(ports[best])
    taken = Counter[int]()
    for index in usable:
        port = ports[index]
        alike = [
            rank
            for rank, (gpu, own) in enumerate(zip(gpus, first, strict=True))
            if gpu.place.closeness(port.place) == gpu.place.closeness(own.place) and port.speed_gbps == own.speed_gbps
        ]
        if not users[index] and alike:
            rank = min(alike, key=lambda rank: (taken[rank], rank))
            users[index].append(rank)
            taken[rank] += 1
    return tuple(
        Nic(
            name=port.name,
            devices=tuple(users[index]),
            pcie=port.place.path[-1] if port.place.path else None,
            gpudirect=port.gpudirect,
            speed_gbps=port.speed_gbps,
        )
        for index, port in enumerate(ports)
    )


def merged(links: Iterable[tuple[int, int, str, int]]) -> list[Link]:
    """(src, dst, kind, count) with the counts of equal ends and kinds added up."""
    counts = Counter[tuple[int, int, str]]()
    for src, dst, kind, count in links:
        counts[src, dst, kind] += count
    return [Link(src=src, dst=dst, kind=kind, count=count) for (src, dst, kind), count in sorted(counts.items())]


def fabrics(kind: str, attachments: Iterable[Attachment], trunks: Iterable[tuple[str, str]] = ()) -> list[Switch]:
    """Physical switches that reach each other act as one fabric, whose members are the GPUs attached to any of them.

    A member's port is all its links together; where members differ, the least is what every pair can count on.
    """
    attachments = list(attachments)
    graph: Any = nx.Graph(list(trunks))
    graph.add_edges_from((one.gpu, one.switch) for one in attachments)
    found = []
    for component in nx.connected_components(graph):
        inside = [one for one in attachments if one.switch in component]
        counts = Counter[int]()
        for one in inside:
            counts[one.gpu] += one.count
        if len(counts) > 1:
            rates = [one.megabytes_per_s for one in inside if one.megabytes_per_s]
            beta = MEBIBYTE / min(rates) if rates else None
            found.append((tuple(sorted(counts)), min(counts.values()), beta))
    return [
        Switch(name=f"{kind}{index}", kind=kind, members=members, count=count, beta_us_per_MB=beta)
        for index, (members, count, beta) in enumerate(sorted(found, key=lambda fabric: fabric[0]))
    ]


def tree(bridges: Mapping[str, PciePlace]) -> list[PcieSwitch]:
    """PCIe switches by name, each with the place of its upstream port; those at a CPU carry its NUMA node."""
    return [
        PcieSwitch(
            name=name,
            parent=place.path[-1] if place.path else None,
            numa=None if place.path else place.numa,
        )
        for name, place in bridges.items()
    ]
