"""Groups of ranks: the racks and nodes of a machine, whatever the numbers of their ranks.

Hierarchical schemes take equal groups of consecutive ranks. Where ranks of a group are apart, `group_by_group` orders
them and `renumbered` states the topology in that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec import structs

from treadle.planner.passes.collective.topology import Edge, LinkNetwork, LogicalTopology

Group = frozenset[int]


def disjoint(racks: Iterable[frozenset[int]], ranks: int) -> tuple[frozenset[int], ...]:
    """The largest racks, and the ranks outside all of them, if any; none for no racks."""
    found: list[frozenset[int]] = []
    for rack in sorted(racks, key=lambda rack: (-len(rack), min(rack))):
        if not any(rack & other for other in found):
            found.append(rack)
    rest = frozenset(range(ranks)).difference(*found)
    return tuple(sorted((*found, *([rest] if rest else [])), key=min)) if found else ()


def partitions(topology: LogicalTopology) -> tuple[tuple[Group, ...], ...]:
    """Racks, unequal nodes and nodes, each where all are of one size with links alike, the widest first."""
    width, ranks = topology.per_node, topology.ranks
    nodes = tuple(frozenset(range(base, base + width)) for base in range(0, ranks, width))
    found = (disjoint(topology.racks, ranks), topology.islands, nodes)
    return tuple(dict.fromkeys(groups for groups in found if groups == nodes or _alike(groups, topology)))


def level_sizes(topology: LogicalTopology) -> tuple[int, ...]:
    """How many ranks hierarchical schemes take as one: those of partitions into consecutive ranks."""
    consecutive = (
        len(groups[0])
        for groups in partitions(topology)
        if all(max(group) - min(group) == len(group) - 1 for group in groups)
    )
    return tuple(dict.fromkeys(consecutive))


def _alike(groups: Sequence[Group], topology: LogicalTopology) -> bool:
    """Whether groups are of one size and links stay links when each takes the next one's place."""
    if len({len(group) for group in groups}) != 1:
        return False
    if topology.per_node < topology.ranks:
        return True  # nodes are equal, and groups consist of whole nodes
    members = [sorted(group) for group in groups]
    follower = {a: b for i, one in enumerate(members) for a, b in zip(one, members[i - 1], strict=True)}
    links = topology.routing.links.keys()
    return {(follower[src], follower[dst]) for src, dst in links} == links


def group_by_group(topology: LogicalTopology) -> tuple[int, ...]:
    """All ranks, those of a rack and of a node next to each other; by number where that is so already."""
    groups = sorted((*topology.racks, *topology.islands), key=lambda group: (-len(group), min(group)))

    def key(rank: int) -> tuple[int, ...]:
        return (*(min(group) if rank in group else topology.ranks for group in groups), rank)

    return tuple(sorted(range(topology.ranks), key=key))


def renumbered(topology: LogicalTopology, order: Sequence[int]) -> LogicalTopology:
    """The topology where rank order[i] is i."""
    place = {rank: number for number, rank in enumerate(order)}

    def moved(links: Iterable[Edge]) -> tuple[Edge, ...]:
        return tuple(sorted((place[src], place[dst]) for src, dst in links))

    def groups(old: Iterable[Group]) -> tuple[Group, ...]:
        return tuple(sorted((frozenset(place[rank] for rank in group) for group in old), key=min))

    def network(old: LinkNetwork) -> LinkNetwork:
        links = {
            edge: structs.replace(old.links[order[edge[0]], order[edge[1]]], src=edge[0], dst=edge[1])
            for edge in moved(old.links)
        }
        ports = (structs.replace(port, links=moved(port.links)) for port in old.ports)
        return LinkNetwork(links, tuple(sorted(ports, key=lambda port: port.links)))

    return replace(
        topology,
        routing=network(topology.routing),
        plan=network(topology.plan),
        hyperedges=tuple(replace(edge, links=moved(edge.links)) for edge in topology.hyperedges),
        islands=groups(topology.islands),
        racks=groups(topology.racks),
        switches=tuple(
            structs.replace(switch, members=tuple(sorted(place[rank] for rank in switch.members)))
            for switch in topology.switches
        ),
    )
