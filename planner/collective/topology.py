"""The logical topology: hardware and sketch -> directed links with costs, ports that take turns, switch policies.

Costs are whole nanoseconds, rounded up, so that every time in a plan is exact and a prediction never flatters
(TACCL, sections 5.2.1 and 5.4; spec 2.1 to 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Literal

from planner.collective.algorithm import LinkCost, Port
from planner.errors import InputError
from planner.hardware import Hardware, Link, Topology, expand
from planner.scalars import MEBIBYTE
from planner.sketch import InternodeSketch, Policy, Sketch

Edge = tuple[int, int]


@dataclass(frozen=True)
class Hyperedge:
    """A switch as the policy sees it: every ordered pair of its members is one of its links."""

    name: str
    policy: Literal["uc-min", "uc-max", "free"]
    links: tuple[Edge, ...]


@dataclass(frozen=True)
class Network:
    """Links with their costs, and the sets of links that take turns."""

    links: dict[Edge, LinkCost]
    ports: tuple[Port, ...]


@dataclass(frozen=True)
class LogicalTopology:
    """Routes are chosen on `routing`; transfers use `plan`, which has other links when routes are inverted."""

    ranks: int
    per_node: int
    routing: Network
    plan: Network
    hyperedges: tuple[Hyperedge, ...]


def build_topology(
    hardware: Hardware, sketch: Sketch, chunk_bytes: int, *, forward: bool = True, inverted: bool = False
) -> LogicalTopology:
    """The links and ports that `sketch` leaves of `hardware`, with costs for chunks of `chunk_bytes`.

    `forward` and `inverted` say in which directions the plan uses the sketch's links. Raises InputError where the
    sketch names devices or links that the hardware does not have.
    """
    topology = expand(hardware)
    _require_match(hardware, sketch)
    physical = _cheapest(topology, chunk_bytes)
    groups = _switch_groups(sketch, topology, physical)
    across = _across_links(sketch, topology, physical)
    routed = sorted(_inside_links(sketch, topology, physical, groups) | across)
    split = {
        edge: _share(sketch.internode_sketch, edge[0] % topology.per_node) if edge in across else 1 for edge in routed
    }
    used: dict[Edge, int] = dict(split) if forward else {}
    for src, dst in routed if inverted else ():
        if (dst, src) not in physical:
            raise InputError(
                f"the inverse of link {src} -> {dst} is needed and {hardware.name!r} has no link {dst} -> {src}; use a "
                "sketch whose links exist in both directions",
                where=f"sketch {sketch.name}",
            )
        used[dst, src] = max(used.get((dst, src), 1), split[src, dst])

    def network(shares: dict[Edge, int]) -> Network:
        links = {edge: link_cost(physical[edge], chunk_bytes, shares[edge]) for edge in sorted(shares)}
        return Network(links, _ports(sketch, topology, links, groups))

    routing = network(split)
    return LogicalTopology(
        ranks=topology.ranks,
        per_node=topology.per_node,
        routing=routing,
        plan=routing if used == split else network(used),
        hyperedges=_hyperedges(sketch, topology, routing.links, groups, chunk_bytes),
    )


def link_cost(link: Link, chunk_bytes: int, share: int = 1) -> LinkCost:
    """alpha, and beta of one chunk times `share`, in ns rounded up; a link never costs less than 1 ns."""
    assert link.alpha_us is not None
    assert link.beta_us_per_MB is not None
    alpha = ceil(Fraction(repr(link.alpha_us)) * 1000)
    beta = ceil(Fraction(repr(link.beta_us_per_MB)) * 1000 * chunk_bytes * share / MEBIBYTE)
    return LinkCost(link.src, link.dst, link.kind, alpha, beta if alpha else max(beta, 1))


def policy_for(policy: Policy, chunk_bytes: int) -> Literal["uc-min", "uc-max", "free"]:
    """`auto` takes few links for chunks above 1 MB and many below (spec 2.3)."""
    if policy != "auto":
        return policy
    return "uc-min" if chunk_bytes > MEBIBYTE else "uc-max"


def relay_of(sketch: Sketch, rank: int, per_node: int) -> int | None:
    """The only rank through which chunks of `rank` leave their node, or None when the sketch does not say."""
    inter = sketch.internode_sketch
    if inter is None or inter.chunk_to_relay_map is None:
        return None
    group, member = inter.chunk_to_relay_map
    base = rank - rank % per_node
    return base + (rank % per_node) // group * group + member


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
        for key, receivers in inter.internode_conn.items():
            path = f"$.internode_sketch.internode_conn.{key}"
            named += [(path, int(key)), *((path, receiver) for receiver in receivers)]
        named += [(f"$.internode_sketch.beta_split.{key}", int(key)) for key in inter.beta_split]
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
        senders = {int(key) for key, receivers in inter.internode_conn.items() if receivers}
        for device in range(size):
            relay = relay_of(sketch, device, size)
            if relay is not None and relay not in senders:
                raise InputError(
                    f"found relay {relay} for device {device}, expected a device that internode_conn lets send",
                    where=where,
                    path="$.internode_sketch.chunk_to_relay_map",
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


def _switch_groups(
    sketch: Sketch, topology: Topology, physical: dict[Edge, Link]
) -> list[tuple[str, frozenset[Edge], Policy]]:
    """(name, links, policy) of the sketch's switch groups, one for each node."""
    intra = sketch.intranode_sketch
    policies = intra.switch_hyperedge_strategy
    groups: list[tuple[str, frozenset[Edge], Policy]] = []
    for node in range(topology.ranks // topology.per_node):
        for i, members in enumerate(intra.switches):
            base = node * topology.per_node
            edges = frozenset((base + a, base + b) for a in members for b in members if a != b)
            for src, dst in sorted(edges):
                if (src, dst) not in physical:
                    raise InputError(
                        f"found devices {src - base} and {dst - base} on one switch, expected a link between them in "
                        "the profile",
                        where=f"sketch {sketch.name}",
                        path=f"$.intranode_sketch.switches[{i}]",
                    )
            policy: Policy = policies[i] if len(policies) > 1 else policies[0] if policies else "auto"
            groups.append((f"switch{i}@{node}", edges, policy))
    return groups


def _inside_links(
    sketch: Sketch,
    topology: Topology,
    physical: dict[Edge, Link],
    groups: Iterable[tuple[str, frozenset[Edge], Policy]],
) -> set[Edge]:
    intra = sketch.intranode_sketch
    if intra.strategy == "switch":
        return {edge for _, edges, _ in groups for edge in edges}
    local = {edge for edge in physical if topology.node(edge[0]) == topology.node(edge[1])}
    if intra.direct_links is None:
        return local
    wanted: set[Edge] = set()
    for i, (src, dst) in enumerate(intra.direct_links):
        for base in range(0, topology.ranks, topology.per_node):
            if (base + src, base + dst) not in local:
                raise InputError(
                    f"found link {src} -> {dst}, expected one that the profile has",
                    where=f"sketch {sketch.name}",
                    path=f"$.intranode_sketch.direct_links[{i}]",
                )
            wanted.add((base + src, base + dst))
    return wanted


def _across_links(sketch: Sketch, topology: Topology, physical: dict[Edge, Link]) -> set[Edge]:
    """Links between nodes: those of `internode_conn`, or all of them when the sketch says nothing about nodes."""
    across = {edge for edge in physical if topology.node(edge[0]) != topology.node(edge[1])}
    if sketch.internode_sketch is None:
        return across
    allowed = {int(key): frozenset(receivers) for key, receivers in sketch.internode_sketch.internode_conn.items()}
    size = topology.per_node
    return {(src, dst) for src, dst in across if dst % size in allowed.get(src % size, ())}


def _share(inter: InternodeSketch | None, device: int) -> int:
    return 1 if inter is None else inter.beta_split.get(str(device), 1)


def _physical_switches(topology: Topology, links: dict[Edge, LinkCost]) -> list[tuple[str, frozenset[Edge]]]:
    found = []
    for switch in topology.switches:
        members = set(switch.members)
        edges = {e for e, link in links.items() if link.kind == switch.kind and e[0] in members and e[1] in members}
        found.append((switch.name, frozenset(edges)))
    return found


def _ports(
    sketch: Sketch,
    topology: Topology,
    links: dict[Edge, LinkCost],
    groups: Iterable[tuple[str, frozenset[Edge], Policy]],
) -> tuple[Port, ...]:
    """Out- and in-ports: of each rank on each switch, and of each NIC (or rank) on the network.

    A port of one link, or one whose links all belong to another port, says nothing and is left out.
    """
    sets: list[tuple[str, frozenset[Edge]]] = []

    def add(name: str, edges: Iterable[Edge], members: Iterable[int]) -> None:
        inside = frozenset(members)
        edges = list(edges)
        sets.append((f"{name} out", frozenset(e for e in edges if e[0] in inside)))
        sets.append((f"{name} in", frozenset(e for e in edges if e[1] in inside)))

    switches = _physical_switches(topology, links)
    switches += [(name, edges & links.keys()) for name, edges, _ in groups]
    for name, edges in switches:
        for rank in sorted({rank for edge in edges for rank in edge}):
            add(f"{name} rank {rank}", edges, [rank])
    across = [e for e in links if topology.node(e[0]) != topology.node(e[1])]
    if sketch.ib_ports == "per_nic":
        for i, members in enumerate(topology.nics):
            add(f"nic {i}", across, members)
    if sketch.ib_ports != "none":
        shared = {rank for nic in topology.nics for rank in nic} if sketch.ib_ports == "per_nic" else set()
        for rank in range(topology.ranks):
            if rank not in shared:
                add(f"network rank {rank}", across, [rank])

    kept: list[Port] = []
    for i, (name, edges) in enumerate(sets):
        covered = any(edges < other or (edges == other and j < i) for j, (_, other) in enumerate(sets))
        if len(edges) > 1 and not covered:
            kept.append(Port(name=name, links=tuple(sorted(edges))))
    return tuple(kept)


def _hyperedges(
    sketch: Sketch,
    topology: Topology,
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
        named = [(name, edges, default) for name, edges in _physical_switches(topology, links)]
    return tuple(
        Hyperedge(name, policy_for(policy, chunk_bytes), tuple(sorted(edges & links.keys())))
        for name, edges, policy in named
    )
