"""Which hosts, interfaces and bridges a profile becomes, with every rate; nothing here touches the machine.

A node is a host, each of its NICs (or each device, where the profile has no NICs) an interface of it. All nodes under
the same uplinks hang at one bridge; an uplink joins the bridge of its nodes to the one above. A host has one address
per interface, and interfaces of the same number form a subnet. Links inside a node are not shaped: its processes use
the memory and the loopback interface of this machine.

A scale S divides every rate and multiplies the latency: the lab is the machine of the profile in slow motion, in which
each message, and so each plan, takes S times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.planner.documents.hardware import Hardware, Network, Uplink
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import fastest_nic, nic_share

MOST_HOSTS, MOST_INTERFACES = 256, 64
SLOWEST_BPS, FASTEST_BPS = 1e5, 3e10
"""Bits per second: below, TCP hardly works; above, the 32 bits of a token bucket's rate end."""


@dataclass(frozen=True)
class Interface:
    """A NIC of a host. `slower`: (address of another host, bits per second) where the path to it is slower."""

    name: str
    address: str
    bits_per_second: int
    slower: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class LabHost:
    name: str
    bridge: int
    devices: int
    interfaces: tuple[Interface, ...]


@dataclass(frozen=True)
class LabUplink:
    """Between two bridges, by their numbers."""

    name: str
    bridge: int
    above: int
    bits_per_second: int


@dataclass(frozen=True)
class LabLayout:
    """Bridge 0 is the core; each other one hangs below its uplink."""

    profile: str
    scale: float
    latency_us: float
    """Latency between two hosts, which programs add; the kernel adds none."""
    bridges: int
    hosts: tuple[LabHost, ...]
    uplinks: tuple[LabUplink, ...]


def layout(hardware: Hardware, scale: float = 1.0) -> LabLayout:
    """The hosts of `hardware`, all rates divided by `scale`.

    Raises InputError for a profile without a network, with too many hosts, or with rates that cannot be shaped.
    """
    network = hardware.network
    if network is None:
        raise InputError("found one node and no network, expected the network between nodes", where=hardware.name)
    if hardware.all_nodes < 2:
        raise InputError("found 1 node, expected at least 2; --nodes sets another number", where=hardware.name)
    if hardware.all_nodes > MOST_HOSTS:
        raise InputError(f"found {hardware.all_nodes} nodes, expected at most {MOST_HOSTS}", where=hardware.name)
    nodes = hardware.every_node
    order = sorted(network.uplinks, key=lambda uplink: (-len(uplink.nodes), uplink.name))
    fastest = fastest_nic(nodes)
    hosts = []
    for number, node in enumerate(nodes):
        shares = _shares(node, fastest)
        if len(shares) > MOST_INTERFACES:
            raise InputError(
                f"found {len(shares)} NICs in a node, expected at most {MOST_INTERFACES}", where=hardware.name
            )
        hosts.append(
            LabHost(
                name=f"node{number}",
                bridge=_bridge(order, number),
                devices=node.devices_per_node,
                interfaces=tuple(
                    _interface(network, number, len(nodes), rail, share, scale, hardware.name)
                    for rail, share in enumerate(shares)
                ),
            )
        )
    return LabLayout(
        profile=hardware.name,
        scale=scale,
        latency_us=network.alpha_us * scale,
        bridges=1 + len(order),
        hosts=tuple(hosts),
        uplinks=tuple(
            LabUplink(
                uplink.name,
                1 + index,
                _bridge(order[:index], uplink.nodes[0]),
                _rate(uplink.beta_us_per_MB, 1.0, scale, f"{hardware.name}: uplink {uplink.name}"),
            )
            for index, uplink in enumerate(order)
        ),
    )


def rate_text(bits_per_second: float) -> str:
    for size, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits_per_second >= size:
            return f"{bits_per_second / size:.4g} {unit}"
    return f"{bits_per_second:.4g} bit/s"


def address(node: int, rail: int) -> str:
    """Address of interface `rail` of host `node`, in 10.64.0.0/10; the subnet of a rail has 16 bits."""
    return f"10.{64 + rail}.{(node + 1) >> 8}.{(node + 1) & 255}"


def _bridge(order: list[Uplink], node: int) -> int:
    """The bridge of the smallest uplink of a node; `order` is from the largest to the smallest."""
    return max((1 + index for index, uplink in enumerate(order) if node in uplink.nodes), default=0)


def _shares(node: Hardware, fastest: float) -> list[float]:
    """The share of the network's rate that each interface has."""
    used = [nic for nic in node.nics if nic.devices]
    if not used:
        return [1.0] * node.devices_per_node
    return [nic_share(nic, fastest) for nic in used]


def _interface(network: Network, node: int, nodes: int, rail: int, share: float, scale: float, where: str) -> Interface:
    rates = {
        other: _rate(network.between(node, other)[1], share, scale, f"{where}: network")
        for other in range(nodes)
        if other != node
    }
    most = max(rates.values())
    slower = tuple((address(other, rail), rate) for other, rate in rates.items() if rate < most)
    return Interface(f"eth{rail}", address(node, rail), most, slower)


def _rate(beta_us_per_MB: float, share: float, scale: float, where: str) -> int:
    """Bits per second. Raises InputError where no token bucket holds it."""
    rate = 8 * MEBIBYTE * 1e6 / beta_us_per_MB * share / scale
    if not SLOWEST_BPS <= rate <= FASTEST_BPS:
        fitting = f"{rate_text(SLOWEST_BPS)} to {rate_text(FASTEST_BPS)}"
        raise InputError(f"found {rate_text(rate)} at --scale {scale:g}, expected {fitting}", where=where)
    return round(rate)
