"""The hardware profile: one kind of node, how many there are, and the network between them.

Costs are alpha in us and beta in us per MiB, spelled `beta_us_per_MB` as in TACCL (1 MB = 1024 KB, section 5.3). A
profile describes one node; `expand` numbers the ranks (`rank = node * devices_per_node + local`) and builds every
directed link.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from planner.errors import InputError
from planner.scalars import Amount, Count, Name, Positive, PositiveAmount, Rank, Record

VERSION = 1


class Device(Record, frozen=True, kw_only=True):
    """What runs operators; `count` equal devices per node are ranks of the node."""

    model: Name
    kind: Literal["gpu", "cpu"]
    count: Positive
    memory_bytes: Positive | None = None
    peak_flops: dict[str, PositiveAmount] = {}
    """FLOP/s by dtype name (`float32`, `bfloat16`, ...)."""
    memory_bandwidth: PositiveAmount | None = None
    """Bytes per second."""
    launch_us: Amount = 0.0
    """Fixed cost of one operator call."""
    multiprocessors: Positive | None = None
    """Of a GPU: its SMs or compute units, which kernels that run together share."""


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


class Nic(Record, frozen=True, kw_only=True):
    """`devices` are the local devices that send through it; `pcie` is the name of the PCIe switch it hangs under."""

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


class Network(Record, frozen=True, kw_only=True):
    """Between nodes every device reaches every device of every other node, through its NIC."""

    kind: Name
    alpha_us: Amount
    beta_us_per_MB: PositiveAmount
    """Of one NIC."""


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
    """Of the one kernel, until its first step."""
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


class Hardware(Record, frozen=True, kw_only=True, tag_field="kind", tag="hardware"):
    """A machine or cluster of `nodes` equal nodes."""

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
    transport: Transport | None = None
    """What collective programs cost beyond links, for `simulate`."""
    latency: Literal["serial", "pipelined"] = "serial"
    """Whether a link is busy during alpha, or only for beta so that messages follow each other closely."""
    sources: dict[str, str] = {}
    """Where each number comes from, by path prefix without `$.` (`devices`, `network.alpha_us`, ...)."""

    @property
    def devices_per_node(self) -> int:
        return sum(device.count for device in self.devices)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for every broken cross reference."""
        size = self.devices_per_node
        expected = f"a local device index below {size}"
        if not self.devices:
            yield "$.devices", "no device", "at least one"
        if size > MAX_RANKS:
            yield "$.devices", f"{size} devices in one node", f"at most {MAX_RANKS}"
        if self.nodes > 1 and self.network is None:
            yield "$.network", "nothing", f"the network between {self.nodes} nodes"
        costs: list[tuple[str, Link | Switch | Network]] = [
            (f"$.links[{i}]", link) for i, link in enumerate(self.links)
        ]
        costs += [(f"$.switches[{i}]", switch) for i, switch in enumerate(self.switches)]
        costs += [] if self.network is None else [("$.network", self.network)]
        for path, cost in costs:
            for field, value in (("alpha_us", cost.alpha_us), ("beta_us_per_MB", cost.beta_us_per_MB)):
                if value is not None and value > MAX_COST_US:
                    yield f"{path}.{field}", f"{value:g}", f"at most {MAX_COST_US:g}"
        seen: set[tuple[int, int, str]] = set()
        for index, link in enumerate(self.links):
            for field in ("src", "dst"):
                if getattr(link, field) >= size:
                    yield f"$.links[{index}].{field}", str(getattr(link, field)), expected
            if link.src == link.dst:
                yield f"$.links[{index}]", f"a link from {link.src} to itself", "two different ends"
            key = (link.src, link.dst, link.kind)
            if key in seen:
                yield (
                    f"$.links[{index}]",
                    f"a second {link.kind} link {link.src} -> {link.dst}",
                    "`count` for parallel links",
                )
            seen.add(key)
        names: set[str] = set()
        parts: tuple[tuple[str, tuple[Switch | Nic | PcieSwitch, ...]], ...] = (
            ("switches", self.switches),
            ("nics", self.nics),
            ("pcie", self.pcie),
        )
        for field, entries in parts:
            for index, entry in enumerate(entries):
                if entry.name in names:
                    yield f"$.{field}[{index}].name", f"second {entry.name!r}", "names that occur once"
                names.add(entry.name)
                members = entry.members if isinstance(entry, Switch) else entry.devices
                inner = "members" if isinstance(entry, Switch) else "devices"
                for place, member in enumerate(members):
                    if member >= size:
                        yield f"$.{field}[{index}].{inner}[{place}]", str(member), expected
                    if member in members[:place]:
                        yield f"$.{field}[{index}].{inner}[{place}]", f"{member} again", "each device once"
        parents = {pcie.name: pcie.parent for pcie in self.pcie}
        for index, nic in enumerate(self.nics):
            if nic.pcie is not None and nic.pcie not in parents:
                yield f"$.nics[{index}].pcie", f"unknown switch {nic.pcie!r}", "the name of a PCIe switch"
        for index, pcie in enumerate(self.pcie):
            if pcie.parent is not None and pcie.parent not in parents:
                yield f"$.pcie[{index}].parent", f"unknown switch {pcie.parent!r}", "the name of a PCIe switch"
            above, steps = pcie.parent, 0
            while above is not None and steps <= len(parents):
                above, steps = parents.get(above), steps + 1
            if above is not None:
                yield f"$.pcie[{index}].parent", "a cycle of PCIe switches", "a tree that ends at a CPU"


MAX_COST_US = 1e7
"""Of alpha, and of beta for 1 MB: ten seconds. Plans count whole ns, whose sums must stay within 62 bits."""
MAX_RANKS = 1024
"""Every pair of ranks in different nodes is a link: beyond this a topology would not fit in memory."""


def source_of(hardware: Hardware, path: str) -> str | None:
    """Where the number at `path` (`devices[0].count`) comes from: the entry of `sources` with the longest prefix."""
    while path:
        if path in hardware.sources:
            return hardware.sources[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return None


class Topology(Struct, frozen=True, kw_only=True):
    """A profile with ranks numbered: what collective planning looks at."""

    ranks: int
    per_node: int
    links: tuple[Link, ...]
    """Sorted by (src, dst, kind). Costs are present on every link; beta is already divided by `count`."""
    switches: tuple[Switch, ...]
    nics: tuple[tuple[int, ...], ...]
    """Global ranks that share each NIC, node by node."""

    def node(self, rank: int) -> int:
        return rank // self.per_node


def scaled(hardware: Hardware, nodes: int) -> Hardware:
    """The same profile with another number of nodes. Raises InputError when it has no network to scale over."""
    if nodes < 1:
        raise InputError(f"found {nodes}, expected at least 1", where="--nodes")
    if nodes > 1 and hardware.network is None:
        raise InputError(
            f"profile {hardware.name!r} has no network between nodes, so it cannot have {nodes}", where="--nodes"
        )
    return replace(hardware, nodes=nodes)


def expand(hardware: Hardware) -> Topology:
    """Number the ranks and build every directed link, inside nodes and between them.

    A switch contributes a link for each ordered pair of members (`kind` of the switch, its costs). Raises InputError
    when a link or switch carries no costs (an imported profile that nobody measured) or there are over MAX_RANKS.
    """
    per_node = hardware.devices_per_node
    if hardware.nodes * per_node > MAX_RANKS:
        raise InputError(
            f"found {hardware.nodes} nodes of {per_node} devices, expected at most {MAX_RANKS} ranks",
            where=hardware.name,
            path="$.nodes",
        )
    links: list[Link] = []
    switches: list[Switch] = []
    for node in range(hardware.nodes):
        base = node * per_node
        for index, link in enumerate(hardware.links):
            if link.alpha_us is None or link.beta_us_per_MB is None:
                raise _unmeasured(hardware, f"$.links[{index}]")
            links.append(
                replace(link, src=base + link.src, dst=base + link.dst, beta_us_per_MB=link.beta_us_per_MB / link.count)
            )
        for index, switch in enumerate(hardware.switches):
            if switch.alpha_us is None or switch.beta_us_per_MB is None:
                raise _unmeasured(hardware, f"$.switches[{index}]")
            members = tuple(base + member for member in switch.members)
            name = switch.name if hardware.nodes == 1 else f"{switch.name}@{node}"
            beta = switch.beta_us_per_MB / switch.count
            switches.append(replace(switch, name=name, members=members, beta_us_per_MB=beta))
            links.extend(
                Link(src=a, dst=b, kind=switch.kind, alpha_us=switch.alpha_us, beta_us_per_MB=beta)
                for a in members
                for b in members
                if a != b
            )
    if hardware.nodes > 1 and hardware.network is not None:
        net = hardware.network
        ranks = range(hardware.nodes * per_node)
        links.extend(
            Link(src=a, dst=b, kind=net.kind, alpha_us=net.alpha_us, beta_us_per_MB=net.beta_us_per_MB)
            for a in ranks
            for b in ranks
            if a // per_node != b // per_node
        )
    nics = tuple(
        tuple(node * per_node + device for device in nic.devices)
        for node in range(hardware.nodes)
        for nic in hardware.nics
    )
    return Topology(
        ranks=hardware.nodes * per_node,
        per_node=per_node,
        links=tuple(sorted(links, key=lambda link: (link.src, link.dst, link.kind))),
        switches=tuple(switches),
        nics=nics,
    )


def _unmeasured(hardware: Hardware, path: str) -> InputError:
    return InputError(
        "found no alpha_us or no beta_us_per_MB, expected both; measure them with `treadle profile measure`, copy them "
        "with `treadle profile import FILE --costs-from NAME`, or write them into the profile",
        where=hardware.name,
        path=path,
    )
