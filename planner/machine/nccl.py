"""What NCCL itself takes for a collective: its ring, tree, NVLS, NVLS tree and PAT in each protocol, in closed form.

NCCL chooses among them by a model: each takes a latency, and the bytes over a rate. The latency is a base and a hop for
every step, by the class of what it crosses (NVLink, PCIe, network). The rate is that of the links of a rank and of the
NICs of its node, cut by the protocol, by what a channel carries, and by how often a byte crosses them. Structure and
numbers are those of NCCL 2.28.3 (NVIDIA/nccl, src/graph/tuning.cc; channels by size: src/enqueue.cc). They serve to
rank, and a measured time may be twice as long (`python -m benchmarks collective.nccl`): `transports.nccl_library` of a
profile has factors to them, fitted to nccl-tests.

Assumed here: links at `link_efficiency` of their rate (0.8; NCCL counts 0.80 of an A100's and 0.82 of an H100's), all
NICs of a node at line rate in place of NCCL's search for rings, channels by class of link, twice as many as rings, a
switch that joins all GPUs of a node for NVLS, and Ampere for GPUs that NCCL does not know. RCCL has other numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from treadle.planner.documents.collective import Collective, Protocol
from treadle.planner.documents.hardware import TEARING, Hardware, InNetwork, Transport
from treadle.planner.documents.nccl_costs import Algorithm, Method, NcclFactors, NcclLibrary
from treadle.planner.errors import InputError
from treadle.planner.machine.nccl_numbers import (
    BASE_US,
    CHANNELS,
    FIRST_SHARE,
    GENERATIONS,
    HOP_US,
    LL_GBPS,
    METHODS,
    MOST_NVLS_RANKS,
    NET_OVERHEAD_US,
    NVLS_CHANNELS,
    NVLS_SHARE,
    NVLS_TREE_GBPS,
    PCIE_CHANNELS,
    PLATEAU,
    PROTOCOLS,
    RING_LL128_GBPS,
    THREAD_BYTES,
    THREADS,
    TREE_GBPS,
    TREE_LL128_GBPS,
    TREE_SHARE,
    Fabric,
)
from treadle.planner.machine.nodes import nic_sets, require_few
from treadle.planner.machine.rates import MB, NVLINK_KINDS, fabric_of


@dataclass(frozen=True)
class NcclMachine:
    """NCCL on a machine of equal nodes. Rates are GB/s (10^9 bytes per second), in each direction."""

    nodes: int
    per_node: int
    generation: str
    fabric: Fabric
    """What joins the GPUs of a node."""
    node_gbps: float
    """One rank into its node."""
    network_gbps: float
    """All NICs of a node together; inf where there is only one."""
    host: str
    channels: int
    nvls_channels: int
    switch: frozenset[InNetwork]
    """What the switch of a node does in the network."""
    whole_lines: bool
    """Whether 128 bytes arrive together everywhere, which LL128 needs."""
    factors: Mapping[Method, NcclFactors] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    @property
    def own(self) -> NcclMachine:
        """The same by NCCL's own numbers, by which it chooses where no tuner does."""
        return replace(self, factors={})

    def factors_of(self, method: Method) -> NcclFactors:
        """Those of the profile; for a method without any the largest of all, so that what was never measured is the
        best only where NCCL itself would prefer it."""
        if not self.factors or method in self.factors:
            return self.factors.get(method, NcclFactors())
        largest = max(factor for each in self.factors.values() for factor in (each.latency, each.bytes))
        return NcclFactors(latency=largest, bytes=largest)


@dataclass(frozen=True)
class NcclMethod:
    """An algorithm of NCCL in a protocol, for one collective; `gbps` is what divides the bytes of a call."""

    algorithm: Algorithm
    protocol: Protocol
    latency_us: float
    gbps: float
    library: NcclMachine
    collective: Collective

    @property
    def method(self) -> Method:
        """Its name in `transports.nccl_library`."""
        if self.algorithm == "ring" or self.algorithm == "tree":
            return METHODS[self.algorithm][PROTOCOLS.index(self.protocol)]
        return self.algorithm

    def parts_us(self, nbytes: int) -> tuple[float, float]:
        """(latency, time of the bytes) in us by NCCL's own numbers, of a call with `nbytes` as NCCL counts them."""
        latency, gbps, library = self.latency_us, self.gbps, self.library
        if self.algorithm == "tree":
            gbps *= _tree_share(self.protocol, nbytes)
        if self._has_plateau and nbytes >= self.plateau_bytes:
            latency *= PLATEAU[library.generation]
        return latency, nbytes / (1000 * gbps)

    def time_us(self, nbytes: int) -> float:
        """us of a call with `nbytes` as NCCL counts them, with the factors of the profile."""
        factors = self.library.factors_of(self.method)
        latency, moved = self.parts_us(nbytes)
        return factors.latency * latency + factors.bytes * moved

    def channels(self, nbytes: int) -> int:
        """How many channels NCCL gives a call."""
        library = self.library
        if self.algorithm in ("nvls", "nvls_tree"):
            return library.nvls_channels
        share = THREADS[self.protocol] * THREAD_BYTES[self.protocol]
        if (self.algorithm, self.protocol) == ("ring", "LL"):
            share *= library.ranks
        return max(1, min(library.channels, nbytes // share))

    @property
    def plateau_bytes(self) -> int:
        return 64 * self.library.channels * self.library.ranks

    @property
    def _has_plateau(self) -> bool:
        simple_ring = (self.algorithm, self.protocol) == ("ring", "Simple")
        return simple_ring and self.collective == "allreduce" and self.library.nodes > 1


def library_of(hardware: Hardware) -> NcclMachine | str:
    """NCCL on the machine of a profile, or why it is not priced there."""
    device = hardware.devices[0]
    if any(device.kind != "gpu" for device in hardware.devices):
        return "NCCL runs on GPUs"
    if not hardware.is_even:
        return "NCCL is priced for equal nodes only"
    if hardware.ranks < 2:
        return "NCCL exchanges nothing between fewer than two GPUs"
    try:
        require_few(hardware)
        kind, _, rate = fabric_of(hardware)
    except InputError as error:
        return str(error)
    transport, costs = hardware.transport or Transport(), hardware.transports.nccl_library or NcclLibrary()
    if hardware.devices_per_node > 1 and not rate:
        return "NCCL is priced over links, of which the profile has none"
    node = rate * transport.link_efficiency / 1e3
    if transport.device_gbps is not None:
        node = min(node, transport.device_gbps)
    fabric: Fabric = "nvlink" if kind in NVLINK_KINDS else "pcie"
    generation = next((name for name, gpus in GENERATIONS.items() if re.search(gpus, device.model)), "ampere")
    ports = sum(rate for _, rate in nic_sets(hardware)) or float(hardware.devices_per_node)
    channels = CHANNELS[generation] if fabric == "nvlink" else PCIE_CHANNELS
    if hardware.nodes > 1:
        channels = min(channels, max(2, 2 * round(ports)))
    inside = {op for switch in hardware.switches if len(switch.members) == hardware.devices_per_node
              for op in switch.in_network}  # fmt: skip
    return NcclMachine(
        nodes=hardware.nodes,
        per_node=hardware.devices_per_node,
        generation=generation,
        fabric=fabric,
        node_gbps=node if hardware.devices_per_node > 1 else inf,
        network_gbps=_network_gbps(hardware, ports),
        host="amd" if re.search(r"AMD|EPYC", hardware.host.cpu_model or "") else "intel",
        channels=costs.channels or channels,
        nvls_channels=costs.nvls_channels or NVLS_CHANNELS,
        switch=frozenset(inside),
        whole_lines=kind not in TEARING and (hardware.nodes == 1 or _direct(hardware)),
        factors=costs.methods,
    )


def candidates(library: NcclMachine, collective: Collective) -> tuple[NcclMethod, ...]:
    """What NCCL has for a collective; none for those that its tuner does not know."""
    found: list[tuple[Algorithm, Protocol]] = []
    if collective in ("allreduce", "allgather", "reducescatter", "broadcast", "reduce"):
        found += [("ring", protocol) for protocol in PROTOCOLS]
    if collective == "allreduce":
        found += [("tree", protocol) for protocol in PROTOCOLS]
    if _nvls(library, collective):
        found.append(("nvls" if library.nodes == 1 else "nvls_tree", "Simple"))
    if collective in ("allgather", "reducescatter") and library.per_node == 1:
        found.append(("pat", "Simple"))
    return tuple(
        NcclMethod(algorithm, protocol, _latency_us(library, collective, algorithm, protocol),
                  _gbps(library, collective, algorithm, protocol), library, collective)
        for algorithm, protocol in found
        if protocol != "LL128" or library.whole_lines
    )  # fmt: skip


def best(found: tuple[NcclMethod, ...], nbytes: int) -> NcclMethod:
    """The candidate of the least time, of these the first."""
    return min(found, key=lambda candidate: candidate.time_us(nbytes))


def call_bytes(collective: Collective, ranks: int, input_bytes: int) -> int:
    """What NCCL counts of a call with `input_bytes` on every rank: the larger of its two buffers."""
    return input_bytes * ranks if collective == "allgather" else input_bytes


def steps(collective: Collective, ranks: int) -> int:
    """Steps of a ring."""
    if collective == "allreduce":
        return 2 * (ranks - 1)
    return ranks - 1 if collective in ("allgather", "reducescatter") else ranks


def _latency_us(library: NcclMachine, collective: Collective, algorithm: Algorithm, protocol: Protocol) -> float:
    nodes, place = library.nodes, PROTOCOLS.index(protocol)
    base, inner = BASE_US[algorithm][place], HOP_US[library.fabric][algorithm][place]
    outer = HOP_US["network"]["tree" if library.per_node == 1 else algorithm][place]
    doublings = nodes.bit_length() - 1
    match algorithm:
        case "ring" if collective in ("broadcast", "reduce"):
            return base + (inner if nodes == 1 else HOP_US["network"]["ring"][place])
        case "ring":
            passes = 2 if collective == "allreduce" else 1
            crossing = passes * (nodes - 1)
            if nodes > 1:
                inner = max(inner, NET_OVERHEAD_US[library.host] * (3 if protocol == "Simple" else 1))
            return base + (steps(collective, library.ranks) - crossing) * inner + crossing * outer
        case "tree":
            return base + 2 * ((library.per_node - 1) * inner + doublings * outer)
        case "nvls":
            return inner
        case "nvls_tree":
            return base + inner + 2 * doublings * outer
        case "pat":
            return base + doublings * outer / 3.5 + library.ranks * 2.8


def _gbps(library: NcclMachine, collective: Collective, algorithm: Algorithm, protocol: Protocol) -> float:
    """Bytes of a call over the time that they take: the rate of a rank's links by how often a byte crosses them."""
    generation, several = library.generation, min(library.nodes, 3) - 1
    rings = max(1, library.channels // 2)
    bus = min(library.node_gbps, library.network_gbps)
    host = generation if library.nodes == 1 else {"intel": "volta", "amd": "ampere"}[library.host]
    around = library.ranks / steps(collective, library.ranks)
    match algorithm:
        case "ring":
            most = {"LL": LL_GBPS[host][several], "LL128": rings * RING_LL128_GBPS[generation], "Simple": inf}
            share = {"LL": 0.5, "LL128": 0.92, "Simple": 1.0}
            return min(bus * share[protocol], most[protocol]) * around
        case "tree":
            bus = min(bus * 0.92, rings * TREE_GBPS[generation][several])
            if protocol == "LL":
                bus = min(bus / 3.8, LL_GBPS[host][several])
            elif protocol == "LL128":
                share_of_lines = 7 / 9 if library.nodes == 1 else 120 / 128
                bus = min(bus * share_of_lines, rings * TREE_LL128_GBPS[generation][several])
            return bus / 2
        case "nvls" | "nvls_tree":
            heads = library.per_node
            inner = library.node_gbps * NVLS_SHARE[generation] * (heads - 1) / heads
            if collective != "allreduce":
                return inner * (heads - 1) / heads  # NCCL takes this rate for that of the whole buffer
            outer = library.network_gbps * (2 if library.nodes == 2 else 1)
            limit = heads * NVLS_TREE_GBPS[generation][several] if algorithm == "nvls_tree" else inf
            return min(2 * inner, outer, limit) * around
        case "pat":
            return bus * 0.75


def _tree_share(protocol: Protocol, nbytes: int) -> float:
    place = (nbytes // FIRST_SHARE).bit_length() - 1
    shares = TREE_SHARE[protocol]
    return int(shares[place], 16) / 10 if 0 <= place < len(shares) else 1.0


def _nvls(library: NcclMachine, collective: Collective) -> bool:
    """Whether switches take part: they reduce, or give to all, or both. NCCL gathers and scatters so in one node."""
    needed: dict[Collective, set[InNetwork]] = {
        "allreduce": {"reduce", "multicast"}, "allgather": {"multicast"}, "reducescatter": {"reduce"},
    }  # fmt: skip
    few = collective == "allreduce" or (library.nodes == 1 and library.ranks <= MOST_NVLS_RANKS)
    able = collective in needed and needed[collective] <= library.switch
    return able and few and NVLS_SHARE[library.generation] > 0


def _network_gbps(hardware: Hardware, ports: float) -> float:
    network = hardware.network
    if hardware.nodes == 1 or network is None:
        return inf
    return min([ports / network.beta_us_per_MB, *(1 / up.beta_us_per_MB for up in network.uplinks)]) * MB / 1e3


def _direct(hardware: Hardware) -> bool:
    """Whether NICs reach the memory of GPUs."""
    return all(nic.gpudirect is not False for nic in hardware.nics if nic.devices)
