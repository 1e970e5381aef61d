"""The logical topology: hardware and sketch -> directed links with costs, ports that take turns, switch policies.

Costs are whole nanoseconds, rounded up, so that every time in a plan is exact and a prediction never flatters
(TACCL, sections 5.2.1 and 5.4).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import permutations
from math import ceil
from typing import Literal

from msgspec.structs import replace

from treadle.planner.documents.hardware import Hardware, Link, Switch
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.documents.sketch import InternodeSketch, Policy, Sketch
from treadle.planner.errors import InputError
from treadle.planner.machine.nodes import RankUplink, Topology, expand, nic_rates, one_node, require_few, uplinks_of
from treadle.planner.passes.collective.algorithm import LinkCost, Port, SwitchCost
from treadle.planner.passes.collective.uplinks import uplink_ports

Edge = tuple[int, int]


@dataclass(frozen=True)
class Hyperedge:
    """A switch as the policy sees it: every ordered pair of its members is one of its links."""

    name: str
    policy: Literal["uc-min", "uc-max", "free"]
    links: tuple[Edge, ...]


@dataclass(frozen=True)
class LinkNetwork:
    """Links with their costs, and the sets of links that take turns."""

    links: dict[Edge, LinkCost]
    ports: tuple[Port, ...]


@dataclass(frozen=True)
class LogicalTopology:
    """Routes are chosen on `routing`; transfers use `plan`, which has other links when routes are inverted."""

    ranks: int
    per_node: int
    routing: LinkNetwork
    plan: LinkNetwork
    hyperedges: tuple[Hyperedge, ...]
    islands: tuple[frozenset[int], ...] = ()
    """The ranks of each unequal node, joined by other links than the network's; such nodes are planned for as one."""
    racks: tuple[frozenset[int], ...] = ()
    """The ranks behind each uplink, if any uplink holds something up."""
    switches: tuple[SwitchCost, ...] = ()
    """Those that work in the network and whose members the plan may join by links, each to each."""


@dataclass(frozen=True)
class _Machine:
    """The physical side: one node with its cheapest link for each pair, repeated, and a network between all.

    `rates` are those of `nic_rates`.
    """

    hardware: Hardware
    node: Topology
    inside: dict[Edge, Link]
    rates: tuple[float, ...]
    uplinks: tuple[RankUplink, ...]

    @property
    def bases(self) -> range:
        """The first rank of each node."""
        return range(0, self.hardware.nodes * self.node.per_node, self.node.per_node)

    def link(self, src: int, dst: int) -> Link | None:
        size = self.node.per_node
        if src // size == dst // size:
            return self.inside.get((src % size, dst % size))
        net = self.hardware.network
        assert net is not None
        beta = net.beta_us_per_MB / min(self.rates[src % size], self.rates[dst % size])
        return Link(src=src, dst=dst, kind=net.kind, alpha_us=net.alpha_us, beta_us_per_MB=beta)

    def crosses(self, link: LinkCost) -> bool:
        """Whether `link` passes through NICs: it leads to another node, or is of the network's kind."""
        size, net = self.node.per_node, self.hardware.network
        return link.src // size != link.dst // size or (
            net is not None and self.hardware.nodes == 1 and link.kind == net.kind
        )


def build_topology(
    hardware: Hardware, sketch: Sketch, chunk_bytes: int, *, forward: bool = True, inverted: bool = False
) -> LogicalTopology:
    """The links and ports that `sketch` leaves of `hardware`, with costs for chunks of `chunk_bytes`.

    `forward` and `inverted` say in which directions the plan uses the sketch's links. Raises InputError where the
    sketch names devices or links that the hardware does not have.
    """
    hardware = one_node(hardware)
    machine = _machine(hardware, chunk_bytes)
    _require_match(hardware, sketch)
    groups = _switch_groups(sketch, machine)
    across = _across_links(sketch, machine)
    per_node = machine.node.per_node
    split = dict.fromkeys(_inside_links(sketch, machine, groups), 1)
    split |= {edge: _share(sketch.internode_sketch, edge[0] % per_node) for edge in across}
    used: dict[Edge, int] = dict(split) if forward else {}
    for (src, dst), share in sorted(split.items()) if inverted else ():
        if machine.link(dst, src) is None:
            raise InputError(
                f"the inverse of link {src} -> {dst} is needed and {hardware.name!r} has no link {dst} -> {src}; use a "
                "sketch whose links exist in both directions",
                where=f"sketch {sketch.name}",
            )
        used[dst, src] = max(used.get((dst, src), 1), share)

    uplinks = {uplink: _cost(0, uplink.beta_us_per_MB, chunk_bytes, 1)[1] for uplink in machine.uplinks}

    def network(shares: dict[Edge, int]) -> LinkNetwork:
        links: dict[Edge, LinkCost] = {}
        across: dict[Edge, float] = {}
        for (src, dst), share in sorted(shares.items()):
            link = machine.link(src, dst)
            assert link is not None
            alpha, beta = _cost(link.alpha_us, link.beta_us_per_MB, chunk_bytes, share)
            links[src, dst] = LinkCost(src, dst, link.kind, alpha, beta)
            if uplinks and machine.crosses(links[src, dst]):
                assert link.beta_us_per_MB is not None
                across[src, dst] = link.beta_us_per_MB * share
                slowest = max((ns for uplink, ns in uplinks.items() if uplink.parts(src, dst)), default=0)
                links[src, dst] = LinkCost(src, dst, link.kind, alpha, max(beta, slowest))
        ports = _ports(sketch, machine, links, groups)
        return LinkNetwork(links, (*ports, *uplink_ports(across, uplinks, ports)))

    routing = network(split)
    plan = routing if used == split else network(used)
    limited = any(port.beta_ns is not None for port in routing.ports)
    return LogicalTopology(
        ranks=hardware.nodes * per_node,
        per_node=per_node,
        routing=routing,
        plan=plan,
        hyperedges=_hyperedges(sketch, machine, routing.links, groups, chunk_bytes),
        islands=_islands(machine, routing.links.values()) if hardware.nodes == 1 else (),
        racks=tuple(uplink.ranks for uplink in machine.uplinks) if limited else (),
        switches=tuple(_in_network(machine, plan.links, chunk_bytes)),
    )


def _in_network(machine: _Machine, links: dict[Edge, LinkCost], chunk_bytes: int) -> Iterator[SwitchCost]:
    one = machine.hardware.nodes == 1
    for node, base in enumerate(machine.bases):
        for switch in machine.node.switches:
            members = tuple(base + member for member in sorted(switch.members))
            if switch.in_network and len(members) > 1 and all(pair in links for pair in permutations(members, 2)):
                alpha, beta = _cost(switch.alpha_us, switch.beta_us_per_MB, chunk_bytes, 1)
                yield SwitchCost(
                    name=switch.name if one else f"{switch.name}@{node}",
                    members=members,
                    in_network=switch.in_network,
                    alpha_ns=alpha,
                    beta_ns=beta,
                )


def link_cost(link: Link, chunk_bytes: int, share: int = 1) -> LinkCost:
    """alpha, and beta of one chunk times `share`, in ns rounded up; a link never costs less than 1 ns."""
    return LinkCost(link.src, link.dst, link.kind, *_cost(link.alpha_us, link.beta_us_per_MB, chunk_bytes, share))


@lru_cache(maxsize=4096)
def _cost(alpha_us: float | None, beta_us_per_MB: float | None, chunk_bytes: int, share: int) -> tuple[int, int]:
    assert alpha_us is not None
    assert beta_us_per_MB is not None
    alpha = ceil(Fraction(repr(alpha_us)) * 1000)
    beta = ceil(Fraction(repr(beta_us_per_MB)) * 1000 * chunk_bytes * share / MEBIBYTE)
    return alpha, beta if alpha else max(beta, 1)


def policy_for(policy: Policy, chunk_bytes: int) -> Literal["uc-min", "uc-max", "free"]:
    """`auto` takes few links for chunks above 1 MB and many below."""
    if policy != "auto":
        return policy
    return "uc-min" if chunk_bytes > MEBIBYTE else "uc-max"


def relays_of(sketch: Sketch, rank: int, per_node: int) -> frozenset[int] | None:
    """The ranks through which chunks of `rank` leave their node, or None when the sketch leaves that open."""
    inter = sketch.internode_sketch
    if inter is None:
        return None
    base, local = rank - rank % per_node, rank % per_node
    if inter.chunk_to_relay_map is not None:
        group, member = inter.chunk_to_relay_map
        return frozenset({base + local // group * group + member})
    senders = (int(sender) for sender, served in inter.gpus_to_sender_rev_map.items() if local in served)
    return frozenset(base + sender for sender in senders) or None


def _machine(hardware: Hardware, chunk_bytes: int) -> _Machine:
    require_few(hardware)
    network = hardware.network and replace(hardware.network, uplinks=())
    node = expand(replace(hardware, nodes=1, network=network))
    return _Machine(hardware, node, _cheapest(node, chunk_bytes), nic_rates(hardware), uplinks_of(hardware))


def _islands(machine: _Machine, links: Iterable[LinkCost]) -> tuple[frozenset[int], ...]:
    links = list(links)
    if not any(map(machine.crosses, links)):
        return ()
    near: dict[int, set[int]] = {rank: set() for rank in range(machine.node.per_node)}
    for link in links:
        if not machine.crosses(link):
            near[link.src].add(link.dst)
            near[link.dst].add(link.src)
    found: list[frozenset[int]] = []
    seen: set[int] = set()
    for start in near:
        if start not in seen:
            island, fresh = {start}, [start]
            while fresh:
                more = near[fresh.pop()] - island
                island |= more
                fresh += more
            seen |= island
            found.append(frozenset(island))
    return tuple(found)


def _require_match(hardware: Hardware, sketch: Sketch) -> None:
    where = f"sketch {sketch.name}"
    size = hardware.devices_per_node
    if sketch.num_nodes is not None and sketch.num_nodes != hardware.nodes:
        raise InputError(
            f"found a sketch for {sketch.num_nodes} nodes, expected {hardware.nodes} as in profile "
            f"{hardware.name!r}; choose the number of nodes with --nodes",
            where=where,
            path="$.num_nodes",
        )
    intra, inter = sketch.intranode_sketch, sketch.internode_sketch
    named: list[tuple[str, int]] = []
    for i, group in enumerate(intra.switches):
        named += [(f"$.intranode_sketch.switches[{i}]", member) for member in group]
        if len(set(group)) != len(group):
            raise InputError("found a device twice, expected each once", where=where, path=named[-1][0])
    for i, pair in enumerate(intra.direct_links or ()):
        named += [(f"$.intranode_sketch.direct_links[{i}]", member) for member in pair]
    if inter is not None:
        for sender, receivers in inter.connections(size).items():
            path = f"$.internode_sketch.internode_conn.{sender}"
            named += [(path, sender), *((path, receiver) for receiver in receivers)]
        named += [(f"$.internode_sketch.beta_split.{key}", int(key)) for key in inter.beta_split]
        for key, served in inter.gpus_to_sender_rev_map.items():
            path = f"$.internode_sketch.gpus_to_sender_rev_map.{key}"
            named += [(path, int(key)), *((path, device) for device in served)]
        if sketch.ib_ports == "per_nic" and any(share > 1 for share in inter.beta_split.values()):
            raise InputError(
                "found shares above 1 together with ib_ports per_nic, expected one of the two: both would charge the "
                "NIC twice",
                where=where,
                path="$.internode_sketch.beta_split",
            )
    for path, member in named:
        if member >= size:
            raise InputError(
                f"found device {member}, expected one below {size} as in profile {hardware.name!r}",
                where=where,
                path=path,
            )
    if hardware.nodes > 1 and inter is not None:
        senders = {sender for sender, receivers in inter.connections(size).items() if receivers}
        formula = inter.chunk_to_relay_map is not None
        for device in range(size):
            for relay in sorted(relays_of(sketch, device, size) or ()):
                if relay not in senders:
                    raise InputError(
                        f"found relay {relay} for device {device}, expected a device that internode_conn lets send",
                        where=where,
                        path=f"$.internode_sketch.{'chunk_to_relay_map' if formula else 'gpus_to_sender_rev_map'}",
                    )


def _cheapest(topology: Topology, chunk_bytes: int) -> dict[Edge, Link]:
    """One physical link for each ordered pair: the one that moves a chunk soonest."""
    best: dict[Edge, tuple[int, str, Link]] = {}
    for link in topology.links:
        cost = link_cost(link, chunk_bytes)
        entry = (cost.alpha_ns + cost.beta_ns, link.kind, link)
        edge = (link.src, link.dst)
        if edge not in best or entry[:2] < best[edge][:2]:
            best[edge] = entry
    return {edge: entry[2] for edge, entry in best.items()}


def _switch_groups(sketch: Sketch, machine: _Machine) -> list[tuple[str, frozenset[Edge], Policy]]:
    """(name, links, policy) of the sketch's switch groups, one for each node."""
    intra = sketch.intranode_sketch
    policies = intra.switch_hyperedge_strategy
    for i, members in enumerate(intra.switches):
        for src, dst in permutations(sorted(members), 2):
            if (src, dst) not in machine.inside:
                raise InputError(
                    f"found devices {src} and {dst} on one switch, expected a link between them in the profile",
                    where=f"sketch {sketch.name}",
                    path=f"$.intranode_sketch.switches[{i}]",
                )
    groups: list[tuple[str, frozenset[Edge], Policy]] = []
    for node, base in enumerate(machine.bases):
        for i, members in enumerate(intra.switches):
            edges = frozenset((base + a, base + b) for a, b in permutations(members, 2))
            policy: Policy = policies[i] if len(policies) > 1 else policies[0] if policies else "auto"
            groups.append((f"switch{i}@{node}", edges, policy))
    return groups


def _inside_links(
    sketch: Sketch, machine: _Machine, groups: Iterable[tuple[str, frozenset[Edge], Policy]]
) -> Iterable[Edge]:
    intra = sketch.intranode_sketch
    if intra.strategy == "switch":
        return (edge for _, edges, _ in groups for edge in edges)
    for i, pair in enumerate(intra.direct_links or ()):
        if pair not in machine.inside:
            raise InputError(
                f"found link {pair[0]} -> {pair[1]}, expected one that the profile has",
                where=f"sketch {sketch.name}",
                path=f"$.intranode_sketch.direct_links[{i}]",
            )
    wanted = machine.inside if intra.direct_links is None else intra.direct_links
    return ((base + src, base + dst) for base in machine.bases for src, dst in wanted)


def _across_links(sketch: Sketch, machine: _Machine) -> Iterable[Edge]:
    """Links between nodes: those of `internode_conn`, or all of them when the sketch says nothing about nodes."""
    devices = range(machine.node.per_node)
    inter = sketch.internode_sketch
    if inter is None:
        pairs = [(src, dst) for src in devices for dst in devices]
    else:
        pairs = [(src, dst) for src, receivers in inter.connections(len(devices)).items() for dst in receivers]
    return ((a + src, b + dst) for a, b in permutations(machine.bases, 2) for src, dst in pairs)


def _share(inter: InternodeSketch | None, device: int) -> int:
    return 1 if inter is None else inter.beta_split.get(str(device), 1)


def _physical_switches(machine: _Machine, links: dict[Edge, LinkCost]) -> list[tuple[str, frozenset[Edge]]]:
    """(name, its links among `links`) of every switch of every node."""

    def edges(switch: Switch, base: int) -> frozenset[Edge]:
        pairs = ((base + a, base + b) for a, b in permutations(switch.members, 2))
        return frozenset(e for e in pairs if e in links and links[e].kind == switch.kind)

    one = machine.hardware.nodes == 1
    return [
        (switch.name if one else f"{switch.name}@{node}", edges(switch, base))
        for node, base in enumerate(machine.bases)
        for switch in machine.node.switches
    ]


Ends = tuple[dict[int, list[Edge]], dict[int, list[Edge]]]


def _by_end(edges: Iterable[Edge]) -> Ends:
    """The links that leave each rank, and those that enter it."""
    leaving: dict[int, list[Edge]] = defaultdict(list)
    entering: dict[int, list[Edge]] = defaultdict(list)
    for edge in edges:
        leaving[edge[0]].append(edge)
        entering[edge[1]].append(edge)
    return leaving, entering


def _ports(
    sketch: Sketch,
    machine: _Machine,
    links: dict[Edge, LinkCost],
    groups: Iterable[tuple[str, frozenset[Edge], Policy]],
) -> tuple[Port, ...]:
    """Out- and in-ports: of each rank on each switch, and of each NIC (or rank) on the network.

    A port of one link, or one whose links all belong to another port, says nothing and is left out.
    """
    sets: list[tuple[str, frozenset[Edge]]] = []

    def add(name: str, members: Iterable[int], edges: Ends) -> None:
        for side, ends in zip(("out", "in"), edges, strict=True):
            sets.append((f"{name} {side}", frozenset(e for rank in members for e in ends.get(rank, ()))))

    switches = _physical_switches(machine, links)
    switches += [(name, edges & links.keys()) for name, edges, _ in groups]
    for name, edges in switches:
        ends = _by_end(edges)
        for rank in sorted({rank for edge in edges for rank in edge}):
            add(f"{name} rank {rank}", [rank], ends)
    size = machine.node.per_node
    across = _by_end(edge for edge, link in links.items() if machine.crosses(link))
    nics = [[base + device for device in nic.devices] for base in machine.bases for nic in machine.hardware.nics]
    shared: set[int] = set()
    if sketch.ib_ports == "per_nic":
        shared = {rank for nic in nics for rank in nic}
        for i, members in enumerate(nics):
            add(f"nic {i}", members, across)
    if sketch.ib_ports != "none":
        for rank in (rank for base in machine.bases for rank in range(base, base + size)):
            if rank not in shared:
                add(f"network rank {rank}", [rank], across)

    holders: dict[Edge, list[int]] = defaultdict(list)
    for i, (_, edges) in enumerate(sets):
        for edge in edges:
            holders[edge].append(i)
    kept: list[Port] = []
    for i, (name, edges) in enumerate(sets):
        if len(edges) > 1:
            rivals = holders[next(iter(edges))]
            if not any(edges < sets[j][1] or (edges == sets[j][1] and j < i) for j in rivals):
                kept.append(Port(name=name, links=tuple(sorted(edges))))
    return tuple(kept)


def _hyperedges(
    sketch: Sketch,
    machine: _Machine,
    links: dict[Edge, LinkCost],
    groups: Iterable[tuple[str, frozenset[Edge], Policy]],
    chunk_bytes: int,
) -> tuple[Hyperedge, ...]:
    named: list[tuple[str, frozenset[Edge], Policy]]
    if sketch.intranode_sketch.strategy == "switch":
        named = list(groups)
    else:
        given = sketch.intranode_sketch.switch_hyperedge_strategy
        default: Policy = given[0] if given else "auto"
        named = [(name, edges, default) for name, edges in _physical_switches(machine, links)]
    return tuple(
        Hyperedge(name, policy_for(policy, chunk_bytes), tuple(sorted(edges & links.keys())))
        for name, edges, policy in named
    )
