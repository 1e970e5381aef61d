"""From a hardware profile to its ranks, links and switches: numbering, NICs, unequal nodes.

`expand` numbers the ranks node by node and builds every directed link. `one_node` writes a machine of unequal nodes as
a single node, which every planner of collectives can take.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from treadle.planner.documents.hardware import MAX_RANKS, Hardware, Link, Nic, PcieSwitch, Switch
from treadle.planner.errors import InputError


class RankUplink(Struct, frozen=True, kw_only=True):
    """An uplink by the ranks behind it."""

    name: str
    ranks: frozenset[int]
    beta_us_per_MB: float

    def parts(self, one: int, other: int) -> bool:
        """Whether what goes from one rank to another passes the uplink."""
        return (one in self.ranks) != (other in self.ranks)


class Topology(Struct, frozen=True, kw_only=True):
    """A profile with ranks numbered: what collective planning looks at."""

    ranks: int
    per_node: int
    """Ranks of a node; all of them where nodes are unequal."""
    links: tuple[Link, ...]
    """Sorted by (src, dst, kind). Costs are present on every link; beta is already divided by `count`."""
    switches: tuple[Switch, ...]
    nics: tuple[tuple[int, ...], ...]
    """Global ranks that share each NIC, or each set of NICs that some rank joins, node by node."""
    homes: tuple[int, ...] = ()
    """The node of each rank, where nodes are unequal."""
    uplinks: tuple[RankUplink, ...] = ()

    def node(self, rank: int) -> int:
        return self.homes[rank] if self.homes else rank // self.per_node


def nic_rates(hardware: Hardware, fastest: float | None = None) -> tuple[float, ...]:
    """By device of one node: what its NICs carry together, in NICs of the network's beta; 1 for a device without any.

    That NIC is one of `fastest` Gb/s, by default the fastest of the profile.
    """
    fastest = fastest_nic([hardware]) if fastest is None else fastest
    return tuple(
        sum(nic_share(nic, fastest) for nic in hardware.nics if device in nic.devices) or 1.0
        for device in range(hardware.devices_per_node)
    )


def nic_sets(hardware: Hardware) -> list[tuple[tuple[int, ...], float]]:
    """Devices of one node that share NICs, and what these carry together, in NICs of the network's beta."""
    fastest = fastest_nic([hardware])
    used = [nic for nic in hardware.nics if nic.devices]
    return [
        (members, sum(nic_share(nic, fastest) for nic in used if nic.devices[0] in members))
        for members in joined(nic.devices for nic in used)
    ]


def fastest_nic(nodes: Iterable[Hardware]) -> float:
    """Gb/s of the fastest NIC that a device uses, 0 where no speed is known."""
    return max((nic.speed_gbps or 0.0 for node in nodes for nic in node.nics if nic.devices), default=0.0)


def nic_share(nic: Nic, fastest: float) -> float:
    """What a NIC carries, in NICs of `fastest` Gb/s."""
    return nic.speed_gbps / fastest if nic.speed_gbps and fastest else 1.0


def uplinks_of(hardware: Hardware) -> tuple[RankUplink, ...]:
    """The uplinks of the network; the nodes of `one_node` are ranks."""
    if hardware.network is None:
        return ()
    starts = _starts(hardware) if hardware.nodes > 1 or hardware.other_nodes else range(hardware.ranks + 1)
    return tuple(
        RankUplink(
            name=uplink.name,
            ranks=frozenset(rank for node in uplink.nodes for rank in range(starts[node], starts[node + 1])),
            beta_us_per_MB=uplink.beta_us_per_MB,
        )
        for uplink in hardware.network.uplinks
    )


def _starts(hardware: Hardware) -> tuple[int, ...]:
    """The first rank of every node, and the number of all ranks."""
    return (0, *accumulate(node.devices_per_node for node in hardware.every_node))


def one_node(hardware: Hardware) -> Hardware:
    """The same ranks as one node, where nodes or what lies between them are unequal; otherwise `hardware` itself.

    Between nodes there are links of the network's kind, which pass through the NICs of both ends; the slower end
    decides their beta. Uplinks list ranks in place of nodes. Raises InputError as `expand`.
    """
    if hardware.is_even:
        return hardware
    require_few(hardware)
    net = hardware.network
    assert net is not None
    nodes = hardware.every_node
    starts = _starts(hardware)
    fastest = fastest_nic(nodes)
    rates = [nic_rates(node, fastest) for node in nodes]
    links: list[Link] = []
    switches: list[Switch] = []
    nics: list[Nic] = []
    pcie: list[PcieSwitch] = []
    for number, (node, base) in enumerate(zip(nodes, starts, strict=False)):

        def shifted(devices: tuple[int, ...], base: int = base) -> tuple[int, ...]:
            return tuple(base + device for device in devices)

        def named(name: str | None, number: int = number) -> str | None:
            return None if name is None else f"{name}@{number}"

        _require_costs(node)
        links += [replace(link, src=base + link.src, dst=base + link.dst) for link in node.links]
        switches += [replace(s, name=named(s.name), members=shifted(s.members)) for s in node.switches]
        nics += [replace(n, name=named(n.name), devices=shifted(n.devices), pcie=named(n.pcie)) for n in node.nics]
        pcie += [replace(p, name=named(p.name), parent=named(p.parent), devices=shifted(p.devices)) for p in node.pcie]
        for there, far in enumerate(rates):
            if there != number:
                alpha, beta = net.between(number, there)
                links += [
                    Link(
                        src=base + a,
                        dst=starts[there] + b,
                        kind=net.kind,
                        alpha_us=alpha,
                        beta_us_per_MB=beta / min(out, into),
                    )
                    for a, out in enumerate(rates[number])
                    for b, into in enumerate(far)
                ]
    return replace(
        hardware,
        nodes=1,
        devices=tuple(device for node in nodes for device in node.devices),
        links=tuple(links),
        switches=tuple(switches),
        nics=tuple(nics),
        pcie=tuple(pcie),
        other_nodes=(),
        network=replace(
            net,
            groups=(),
            uplinks=tuple(
                replace(uplink, nodes=tuple(rank for n in uplink.nodes for rank in range(starts[n], starts[n + 1])))
                for uplink in net.uplinks
            ),
        ),
    )


def expand(hardware: Hardware) -> Topology:
    """Number the ranks and build every directed link, inside nodes and between them.

    A switch contributes a link for each ordered pair of members (`kind` of the switch, its costs). Raises InputError
    when a link or switch carries no costs (an imported profile without measurements) or there are over MAX_RANKS.
    """
    if not hardware.is_even:
        whole = expand(one_node(hardware))
        homes = (number for number, node in enumerate(hardware.every_node) for _ in range(node.devices_per_node))
        return replace(whole, homes=tuple(homes))
    require_few(hardware)
    _require_costs(hardware)
    per_node = hardware.devices_per_node
    links: list[Link] = []
    switches: list[Switch] = []
    for node in range(hardware.nodes):
        base = node * per_node
        for link in hardware.links:
            assert link.beta_us_per_MB is not None
            links.append(
                replace(link, src=base + link.src, dst=base + link.dst, beta_us_per_MB=link.beta_us_per_MB / link.count)
            )
        for switch in hardware.switches:
            assert switch.beta_us_per_MB is not None
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
        rates = nic_rates(hardware) * hardware.nodes
        ranks = range(hardware.nodes * per_node)
        links.extend(
            Link(
                src=a,
                dst=b,
                kind=net.kind,
                alpha_us=net.alpha_us,
                beta_us_per_MB=net.beta_us_per_MB / min(rates[a], rates[b]),
            )
            for a in ranks
            for b in ranks
            if a // per_node != b // per_node
        )
    nics = tuple(
        tuple(node * per_node + device for device in members)
        for node in range(hardware.nodes)
        for members in joined(nic.devices for nic in hardware.nics)
    )
    return Topology(
        ranks=hardware.nodes * per_node,
        per_node=per_node,
        links=tuple(sorted(links, key=lambda link: (link.src, link.dst, link.kind))),
        switches=tuple(switches),
        nics=nics,
        uplinks=uplinks_of(hardware),
    )


def passes_nics(hardware: Hardware) -> bool:
    """Whether links of the profile's node itself are the network's, as `one_node` makes them."""
    return hardware.network is not None and any(link.kind == hardware.network.kind for link in hardware.links)


def joined(groups: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The groups, those with members in common made one, in the order of their first."""
    found: list[tuple[int, ...]] = []
    for group in groups:
        met = [other for other in found if set(other) & set(group)]
        whole = tuple(dict.fromkeys(member for part in (*met, group) for member in part))
        place = found.index(met[0]) if met else len(found)
        found = [other for other in found if other not in met]
        found.insert(place, whole)
    return found


def require_few(hardware: Hardware) -> None:
    """Raises InputError for more than MAX_RANKS ranks."""
    if hardware.ranks > MAX_RANKS:
        sizes = f"{hardware.nodes} nodes of {hardware.devices_per_node} devices"
        found = f"{hardware.ranks} devices" if hardware.other_nodes else sizes
        raise InputError(
            f"found {found}, expected at most {MAX_RANKS} ranks",
            where=hardware.name,
            path="$.nodes",
        )


def _require_costs(hardware: Hardware) -> None:
    parts: list[tuple[str, Link | Switch]] = [(f"$.links[{i}]", link) for i, link in enumerate(hardware.links)]
    parts += [(f"$.switches[{i}]", switch) for i, switch in enumerate(hardware.switches)]
    for path, part in parts:
        if part.alpha_us is None or part.beta_us_per_MB is None:
            raise _unmeasured(hardware, path)


def _unmeasured(hardware: Hardware, path: str) -> InputError:
    return InputError(
        "found no alpha_us or no beta_us_per_MB, expected both; measure them with `treadle profile measure`, copy them "
        "with `treadle profile import FILE --costs-from NAME`, or write them into the profile",
        where=hardware.name,
        path=path,
    )
