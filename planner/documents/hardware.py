"""The hardware profile: one kind of node, how many there are, and the network between them.

Costs are alpha in us and beta in us per MiB, spelled `beta_us_per_MB` as in TACCL (1 MB = 1024 KB, section 5.3). A
profile describes one node, and how many there are; nodes unlike that one follow in `other_nodes`.
`treadle.planner.machine.nodes` numbers the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from treadle.planner.documents.scalars import Amount, Count, Document, Name, Positive, PositiveAmount, Rank, Record
from treadle.planner.documents.transports import Transports
from treadle.planner.errors import InputError

VERSION = 1


TEARING = frozenset({"pcie"})
"""Kinds of link over which a store of 128 bytes may arrive in parts: LL128, whose flag is in its last 8 bytes, cannot
run over them (NCCL, src/graph/tuning.cc: inside a node it takes LL128 over NVLink only)."""


InNetwork = Literal["multicast", "reduce"]
"""What a switch does with data that passes it: it gives what one member writes to all members, or gives one member the
sum of what all hold."""


class Device(Record, frozen=True, kw_only=True):
    """What runs operators; `count` equal devices per node are ranks of the node."""

    model: Name
    kind: Literal["gpu", "cpu"]
    count: Positive
    memory_bytes: Positive | None = None
    peak_flops: dict[str, PositiveAmount] = {}
    """FLOP/s by dtype name (`float32`, `bfloat16`, ...)."""
    gemm_flops: dict[str, PositiveAmount] = {}
    """FLOP/s that generated matrix products were measured to reach, by dtype name; else they are modelled."""
    memory_bandwidth: PositiveAmount | None = None
    """Bytes per second."""
    launch_us: Amount = 0.0
    """Fixed cost of one operator call."""
    multiprocessors: Positive | None = None
    """SMs or compute units of a GPU, shared by kernels that run together."""


class Host(Record, frozen=True, kw_only=True):
    cpu_cores: Positive | None = None
    memory_bytes: Positive | None = None
    cpu_model: Name | None = None
    numa_nodes: Positive | None = None


class Link(Record, frozen=True, kw_only=True):
    """Directed; `count` parallel links divide beta. Ends are local devices in a profile, ranks after `expand`."""

    src: Rank
    dst: Rank
    kind: Name
    alpha_us: Amount | None = None
    beta_us_per_MB: Amount | None = None
    count: Positive = 1


class Switch(Record, frozen=True, kw_only=True):
    """A full-bisection fabric: members reach each other, each through one port that is the unit of contention.

    The port is `count` parallel links of a member into the fabric; they divide beta.
    """

    name: Name
    kind: Name
    members: tuple[Rank, ...]
    alpha_us: Amount | None = None
    beta_us_per_MB: Amount | None = None
    count: Positive = 1
    in_network: tuple[InNetwork, ...] = ()
    """What it does in the network (NVLink SHARP does both). The costs are then those of a read or a write as well."""


class Nic(Record, frozen=True, kw_only=True):
    """`devices` are the local devices that send through it; `pcie` is the name of the PCIe switch it hangs under.

    A device among several NICs sends through all of them at once.
    """

    name: Name
    devices: tuple[Rank, ...]
    pcie: Name | None = None
    gpudirect: bool | None = None
    speed_gbps: PositiveAmount | None = None


class PcieSwitch(Record, frozen=True, kw_only=True):
    """`parent` is another PCIe switch or absent when it hangs at the CPU of `numa`."""

    name: Name
    parent: Name | None = None
    numa: Count | None = None
    devices: tuple[Rank, ...] = ()


class CopyEngine(Record, frozen=True, kw_only=True):
    """Copies between every device and its host in one direction."""

    direction: Literal["host-to-device", "device-to-host"]
    bandwidth: PositiveAmount
    """Bytes per second."""
    alpha_us: Amount = 0.0
    count: Positive = 1


class NodeGroup(Record, frozen=True, kw_only=True):
    """Nodes between which the network has other costs: those under one switch, or a pair; absent ones are the same."""

    name: Name
    nodes: tuple[Rank, ...]
    alpha_us: Amount | None = None
    beta_us_per_MB: PositiveAmount | None = None
    """Cost of one NIC."""


class Uplink(Record, frozen=True, kw_only=True):
    """One link that `nodes` share to all other nodes, in each direction: that of a rack's switch."""

    name: Name
    nodes: tuple[Rank, ...]
    beta_us_per_MB: PositiveAmount


class Network(Record, frozen=True, kw_only=True):
    """Between nodes every device reaches every device of every other node, through its NICs and the uplinks between."""

    kind: Name
    alpha_us: Amount
    beta_us_per_MB: PositiveAmount
    """Cost of one NIC, the fastest if their `speed_gbps` differ."""
    groups: tuple[NodeGroup, ...] = ()
    """Two nodes have the costs of the smallest group of both that states them."""
    uplinks: tuple[Uplink, ...] = ()
    """Links of racks, or of racks and rows of racks: two have no node in common unless one has all of the other's."""

    def between(self, one: int, other: int) -> tuple[float, float]:
        """alpha_us, and beta_us_per_MB of one NIC, between two nodes."""
        common = sorted((g for g in self.groups if {one, other} <= set(g.nodes)), key=lambda g: len(g.nodes))
        alpha = next((g.alpha_us for g in common if g.alpha_us is not None), self.alpha_us)
        return alpha, next((g.beta_us_per_MB for g in common if g.beta_us_per_MB is not None), self.beta_us_per_MB)


class ProtocolCost(Record, frozen=True, kw_only=True):
    """What sending by one protocol (Simple, LL, LL128) costs a program's threadblocks on this machine."""

    alpha_us: Amount
    """From the end of a send until the receiver can go on, beyond the alpha of the link."""
    threadblock_gbps: PositiveAmount
    """Payload that one threadblock can send, or receive, in GB/s (10^9 bytes per second)."""
    overlap: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of a message that its receiver handles while the sender is still at it."""
    slot_bytes: Positive | None = None
    """Payload of one message slot, where it is not that of 256 threads."""


class Transport(Record, frozen=True, kw_only=True):
    """What executing a collective program costs beyond its links: the fit of `simulate` to measured runs.

    The defaults are those of eight A100, where a profile says nothing.
    """

    launch_us: Amount = 9.0
    """Time of the kernel before its first step."""
    step_us: Amount = 0.44
    """Fixed cost of a step to its threadblock."""
    local_gbps: PositiveAmount = 25.0
    """Local copies of one threadblock, in GB/s; sums take half as long again."""
    link_efficiency: PositiveAmount = 0.8
    """Share of a link's or port's bandwidth that messages reach."""
    device_gbps: PositiveAmount | None = None
    """What all links of a device together carry, out and in each, where that is less than their sum."""
    Simple: ProtocolCost = ProtocolCost(alpha_us=3.26, threadblock_gbps=17.0, overlap=0.17)
    LL: ProtocolCost = ProtocolCost(alpha_us=0.66, threadblock_gbps=4.0, overlap=0.47, slot_bytes=32768)
    LL128: ProtocolCost = ProtocolCost(alpha_us=1.0, threadblock_gbps=12.0, overlap=0.17, slot_bytes=576000)

    def protocol(self, name: str) -> ProtocolCost:
        return {"Simple": self.Simple, "LL": self.LL, "LL128": self.LL128}[name]


class OtherNodes(Record, frozen=True, kw_only=True):
    """`nodes` nodes unlike those that the profile describes; what is absent is as in those."""

    nodes: Positive = 1
    devices: tuple[Device, ...] | None = None
    links: tuple[Link, ...] | None = None
    switches: tuple[Switch, ...] | None = None
    nics: tuple[Nic, ...] | None = None
    pcie: tuple[PcieSwitch, ...] | None = None


class Hardware(Document, frozen=True, kw_only=True, tag_field="kind", tag="hardware"):
    """A machine or cluster of `nodes` equal nodes, and of `other_nodes`."""

    version: Positive
    name: Name
    nodes: Positive
    devices: tuple[Device, ...]
    host: Host = Host()
    links: tuple[Link, ...] = ()
    switches: tuple[Switch, ...] = ()
    nics: tuple[Nic, ...] = ()
    pcie: tuple[PcieSwitch, ...] = ()
    copy_engines: tuple[CopyEngine, ...] = ()
    copy_together: PositiveAmount | None = None
    """Bytes per second of copies in both directions together; absent where they do not slow each other down."""
    network: Network | None = None
    other_nodes: tuple[OtherNodes, ...] = ()
    """Nodes unlike those described so far; their ranks follow, in this order."""
    transport: Transport | None = None
    """What collective programs cost beyond links on GPUs, for `simulate`."""
    transports: Transports = Transports()
    """What they cost on other backends, by name."""
    latency: Literal["serial", "pipelined"] = "serial"
    """Whether a link is busy during alpha, or only for beta so that messages follow each other closely."""
    sources: dict[str, str] = {}
    """Where each number comes from, by path prefix without `$.` (`devices`, `network.alpha_us`, ...)."""

    @property
    def devices_per_node(self) -> int:
        """Devices of one of the `nodes` equal nodes."""
        return sum(device.count for device in self.devices)

    @property
    def all_nodes(self) -> int:
        """How many nodes there are in all."""
        return self.nodes + sum(other.nodes for other in self.other_nodes)

    @property
    def every_node(self) -> tuple[Hardware, ...]:
        """A profile of one node for each node of the machine, in the order of their ranks."""
        alike = replace(self, nodes=1, other_nodes=())
        found = [alike] * self.nodes
        for other in self.other_nodes:
            given = {name: value for name in _OF_NODES if (value := getattr(other, name)) is not None}
            found += [replace(alike, **given)] * other.nodes
        return tuple(found)

    @property
    def ranks(self) -> int:
        """Devices of all nodes."""
        return self.nodes * self.devices_per_node + sum(
            other.nodes * sum(device.count for device in (self.devices if other.devices is None else other.devices))
            for other in self.other_nodes
        )

    @property
    def is_even(self) -> bool:
        """Whether all nodes are alike, and what lies between any two of them, uplinks apart."""
        groups = self.network.groups if self.network is not None else ()
        return not self.other_nodes and all(g.alpha_us is None and g.beta_us_per_MB is None for g in groups)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for every broken cross reference."""
        total = self.all_nodes
        if total > 1 and self.network is None:
            yield "$.network", "nothing", f"the network between {total} nodes"
        if self.network is not None:
            yield from _cost_problems("$.network", self.network)
            for index, group in enumerate(self.network.groups):
                path = f"$.network.groups[{index}]"
                yield from _cost_problems(path, group)
                for place, node in enumerate(group.nodes):
                    if node >= total:
                        yield f"{path}.nodes[{place}]", str(node), f"a node below {total}"
                    if node in group.nodes[:place]:
                        yield f"{path}.nodes[{place}]", f"{node} again", "each node once"
            yield from _uplink_problems(self.network.uplinks, total)
        yield from self._problems_of_node("$")
        start = self.nodes
        for index, other in enumerate(self.other_nodes):
            if total <= MAX_RANKS:
                yield from self.every_node[start]._problems_of_node(f"$.other_nodes[{index}]")
            start += other.nodes
        if total > MAX_RANKS and self.other_nodes:
            yield "$.other_nodes", f"{total} nodes", f"at most {MAX_RANKS}"

    def _problems_of_node(self, prefix: str) -> Iterator[tuple[str, str, str]]:
        size = self.devices_per_node
        expected = f"a local device index below {size}"
        if not self.devices:
            yield f"{prefix}.devices", "no device", "at least one"
        if size > MAX_RANKS:
            yield f"{prefix}.devices", f"{size} devices in one node", f"at most {MAX_RANKS}"
        for index, link in enumerate(self.links):
            yield from _cost_problems(f"{prefix}.links[{index}]", link)
        for index, switch in enumerate(self.switches):
            yield from _cost_problems(f"{prefix}.switches[{index}]", switch)
            for place, op in enumerate(switch.in_network):
                if op in switch.in_network[:place]:
                    yield f"{prefix}.switches[{index}].in_network[{place}]", f"{op} again", "each once"
        seen: set[tuple[int, int, str]] = set()
        for index, link in enumerate(self.links):
            for field in ("src", "dst"):
                if getattr(link, field) >= size:
                    yield f"{prefix}.links[{index}].{field}", str(getattr(link, field)), expected
            if link.src == link.dst:
                yield f"{prefix}.links[{index}]", f"a link from {link.src} to itself", "two different ends"
            key = (link.src, link.dst, link.kind)
            if key in seen:
                yield (
                    f"{prefix}.links[{index}]",
                    f"a second {link.kind} link {link.src} -> {link.dst}",
                    "`count` for parallel links",
                )
            seen.add(key)
        names: set[str] = set()
        named: tuple[tuple[str, tuple[Switch | Nic | PcieSwitch, ...]], ...] = (
            ("switches", self.switches),
            ("nics", self.nics),
            ("pcie", self.pcie),
        )
        for field, entries in named:
            for index, entry in enumerate(entries):
                if entry.name in names:
                    yield f"{prefix}.{field}[{index}].name", f"second {entry.name!r}", "names that occur once"
                names.add(entry.name)
                members = entry.members if isinstance(entry, Switch) else entry.devices
                inner = "members" if isinstance(entry, Switch) else "devices"
                for place, member in enumerate(members):
                    if member >= size:
                        yield f"{prefix}.{field}[{index}].{inner}[{place}]", str(member), expected
                    if member in members[:place]:
                        yield f"{prefix}.{field}[{index}].{inner}[{place}]", f"{member} again", "each device once"
        parents = {pcie.name: pcie.parent for pcie in self.pcie}
        for index, nic in enumerate(self.nics):
            if nic.pcie is not None and nic.pcie not in parents:
                yield f"{prefix}.nics[{index}].pcie", f"unknown switch {nic.pcie!r}", "the name of a PCIe switch"
        for index, pcie in enumerate(self.pcie):
            if pcie.parent is not None and pcie.parent not in parents:
                yield f"{prefix}.pcie[{index}].parent", f"unknown switch {pcie.parent!r}", "the name of a PCIe switch"
            above, steps = pcie.parent, 0
            while above is not None and steps <= len(parents):
                above, steps = parents.get(above), steps + 1
            if above is not None:
                yield f"{prefix}.pcie[{index}].parent", "a cycle of PCIe switches", "a tree that ends at a CPU"


def _uplink_problems(uplinks: tuple[Uplink, ...], nodes: int) -> Iterator[tuple[str, str, str]]:
    for index, uplink in enumerate(uplinks):
        path = f"$.network.uplinks[{index}]"
        yield from _cost_problems(path, uplink)
        if not uplink.nodes:
            yield f"{path}.nodes", "no node", "at least one"
        for place, node in enumerate(uplink.nodes):
            if node >= nodes:
                yield f"{path}.nodes[{place}]", str(node), f"a node below {nodes}"
            if node in uplink.nodes[:place]:
                yield f"{path}.nodes[{place}]", f"{node} again", "each node once"
        if len({*uplink.nodes}) == nodes:
            yield f"{path}.nodes", "every node", "nodes that leave one outside"
        for other in uplinks[:index]:
            if other.name == uplink.name:
                yield f"{path}.name", f"second {uplink.name!r}", "names that occur once"
            mine, theirs = set(uplink.nodes), set(other.nodes)
            if mine == theirs or (mine & theirs and not mine < theirs and not theirs < mine):
                yield (
                    f"{path}.nodes",
                    f"nodes of {other.name!r}",
                    "none of them, all and more, or some of them only",
                )


def _uplinks_of(uplinks: tuple[Uplink, ...], nodes: int) -> Iterator[Uplink]:
    """The uplinks that are left with the first `nodes` nodes; the slowest where several have the same."""
    slowest: dict[frozenset[int], Uplink] = {}
    for uplink in uplinks:
        kept = replace(uplink, nodes=tuple(node for node in uplink.nodes if node < nodes))
        same = slowest.get(frozenset(kept.nodes))
        if 0 < len(kept.nodes) < nodes and (same is None or same.beta_us_per_MB < kept.beta_us_per_MB):
            slowest[frozenset(kept.nodes)] = kept
    yield from slowest.values()


def _cost_problems(path: str, part: Link | Switch | Network | NodeGroup | Uplink) -> Iterator[tuple[str, str, str]]:
    for field in ("alpha_us", "beta_us_per_MB"):
        value = getattr(part, field, None)
        if value is not None and value > MAX_COST_US:
            yield f"{path}.{field}", f"{value:g}", f"at most {MAX_COST_US:g}"


_OF_NODES = ("devices", "links", "switches", "nics", "pcie")
"""What `other_nodes` may have of their own."""
MAX_COST_US = 1e7
"""Limit of alpha, and of beta for 1 MB: ten seconds. Plans count whole ns, whose sums must stay within 62 bits."""
MAX_RANKS = 1024
"""Every pair of ranks in different nodes is a link: beyond this a topology would not fit in memory."""


def scaled(hardware: Hardware, nodes: int) -> Hardware:
    """The same profile with another number of nodes. Raises InputError when it has no network to scale over, or
    unequal nodes."""
    if nodes < 1:
        raise InputError(f"found {nodes}, expected at least 1", where="--nodes")
    if nodes > 1 and hardware.network is None:
        raise InputError(
            f"profile {hardware.name!r} has no network between nodes, so it cannot have {nodes}", where="--nodes"
        )
    if hardware.other_nodes:
        raise InputError(
            f"profile {hardware.name!r} has unequal nodes, so its file says how many of each", where="--nodes"
        )
    network = hardware.network
    if network is not None and nodes < hardware.nodes:
        kept = (replace(g, nodes=tuple(n for n in g.nodes if n < nodes)) for g in network.groups)
        groups = tuple(g for g in kept if len(g.nodes) > 1)
        network = replace(network, groups=groups, uplinks=tuple(_uplinks_of(network.uplinks, nodes)))
    return replace(hardware, nodes=nodes, network=network)


def slow_motion(hardware: Hardware, factor: float, alpha_us: float) -> Hardware:
    """The profile in a lab: links `factor` times as slow, one latency for all pairs of hosts."""
    network = hardware.network
    if network is None:
        return hardware
    groups = tuple(
        replace(g, alpha_us=None, beta_us_per_MB=None if g.beta_us_per_MB is None else g.beta_us_per_MB * factor)
        for g in network.groups
    )
    slowed = replace(
        network,
        alpha_us=alpha_us,
        beta_us_per_MB=network.beta_us_per_MB * factor,
        groups=groups,
        uplinks=tuple(replace(u, beta_us_per_MB=u.beta_us_per_MB * factor) for u in network.uplinks),
    )
    return replace(hardware, network=slowed)
