"""Renumberings of one node's devices that change nothing, found as automorphisms of a labelled graph.

Kept are only those that generate a group which moves every device with every element but the identity: then the images
of a chunk are different chunks, any routing of one is a routing of all, and no tie can make the problem infeasible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import gcd
from typing import Any

import networkx as nx
from networkx.algorithms.isomorphism import DiGraphMatcher

from treadle.planner.documents.hardware import Hardware
from treadle.planner.machine.nodes import nic_rates, passes_nics
from treadle.planner.passes.collective.gates import Gates
from treadle.planner.passes.collective.symmetry import rotated

Perm = tuple[int, ...]

MOST_TRIED = 100_000
"""Pairs of devices compared where no rotation is a symmetry: 1,562 automorphisms of 8 devices, 24 of 64."""


@dataclass(frozen=True)
class Renumbering:
    """`rotation` is (offset, group) where the permutation is that rotation."""

    perm: Perm
    rotation: tuple[int, int] | None = None


def generators(hardware: Hardware, gates: Gates | None) -> tuple[list[Renumbering], int]:
    """Generators on the devices of one node, rotations where possible, and the order of their group."""
    size = hardware.devices_per_node
    graph = structure(hardware, gates)
    colours = _colours(graph)
    most = gcd(*Counter(colours[device] for device in range(size)).values())
    group: frozenset[Perm] = frozenset({tuple(range(size))})
    found: list[Renumbering] = []
    for one in _candidates(graph, size):
        if len(group) == most:
            break
        if one.perm not in group and keeps(graph, one.perm):
            larger = _closure([*(other.perm for other in found), one.perm], most)
            if larger is not None:
                group = larger
                found.append(one)
    return found, len(group)


def structure(hardware: Hardware, gates: Gates | None) -> nx.DiGraph[Any]:
    """One node: devices, their links, switches, NICs, who sends to whom and for whom, as a labelled graph."""
    graph: nx.DiGraph[Any] = nx.DiGraph()
    labels: dict[tuple[Any, Any], list[Any]] = {}
    for device in range(hardware.devices_per_node):
        graph.add_node(device, what="device")
    for link in hardware.links:
        label = ("link", link.kind, link.alpha_us, link.beta_us_per_MB, link.count)
        labels.setdefault((link.src, link.dst), []).append(label)
    groups: list[tuple[tuple[Any, ...], Iterable[int]]] = [
        (("switch", s.kind, s.alpha_us, s.beta_us_per_MB, s.count), s.members) for s in hardware.switches
    ]
    groups += [(("nic",), devices) for devices in (gates.nics if gates else ())]
    if gates is None and passes_nics(hardware):
        groups += [(("nic", nic.speed_gbps), nic.devices) for nic in hardware.nics]
        uplinks = hardware.network.uplinks if hardware.network else ()
        groups += [(("uplink", uplink.beta_us_per_MB), uplink.nodes) for uplink in uplinks]
    rates = nic_rates(hardware)
    for index, (what, members) in enumerate(groups):
        graph.add_node(("group", index), what=what)
        for device in members:
            labels.setdefault((device, ("group", index)), []).append(("member",))
    if gates is not None:
        receivers = {device for to in gates.connections.values() for device in to}
        for device in range(hardware.devices_per_node):
            role = (device in gates.connections, device in receivers, gates.share.get(device))
            graph.nodes[device]["what"] = role if len(set(rates)) == 1 else (*role, rates[device])
        for sender, to in gates.connections.items():
            for receiver in to:
                labels.setdefault((sender, receiver), []).append(("crosses",))
        for device, sender in enumerate(gates.sender_of or ()):
            labels.setdefault((device, sender), []).append(("leaves by",))
    for (one, other), kinds in labels.items():
        graph.add_edge(one, other, what=tuple(sorted(kinds, key=repr)))
    return graph


def _colours(graph: nx.DiGraph[Any]) -> dict[Any, int]:
    """Colour refinement: nodes of different colours are never images of each other."""
    colour = dict.fromkeys(graph, 0)
    while True:
        seen = {
            node: (
                colour[node],
                repr(graph.nodes[node]["what"]),
                sorted((repr(graph.edges[node, other]["what"]), colour[other]) for other in graph.successors(node)),
                sorted((repr(graph.edges[other, node]["what"]), colour[other]) for other in graph.predecessors(node)),
            )
            for node in graph
        }
        number = {key: index for index, key in enumerate(sorted({repr(value) for value in seen.values()}))}
        finer = {node: number[repr(value)] for node, value in seen.items()}
        if len(set(finer.values())) == len(set(colour.values())):
            return finer
        colour = finer


def _candidates(graph: nx.DiGraph[Any], size: int) -> Iterator[Renumbering]:
    """Rotations first, then automorphisms as the matcher finds them."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    for group in reversed(divisors):
        for offset in (d for d in divisors if d < group and group % d == 0):
            yield Renumbering(tuple(rotated(device, offset, group) for device in range(size)), (offset, group))

    def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
        return bool(one["what"] == other["what"])

    matcher = DiGraphMatcher(graph, graph, node_match=alike, edge_match=alike)
    for image in islice(matcher.isomorphisms_iter(), max(1, MOST_TRIED // size**2)):
        yield Renumbering(tuple(image[device] for device in range(size)))


def keeps(graph: nx.DiGraph[Any], perm: Perm) -> bool:
    """Whether `perm` of the devices, with its renumbering of switches and NICs, maps the labelled graph onto itself."""
    size = len(perm)
    for one, other in graph.edges:
        if isinstance(other, int):
            what = graph.edges[one, other]["what"]
            image = graph.get_edge_data(perm[one], perm[other])
            if image is None or image["what"] != what:
                return False
    if any(graph.nodes[device]["what"] != graph.nodes[perm[device]]["what"] for device in range(size)):
        return False
    groups = Counter(
        (graph.nodes[node]["what"], frozenset(graph.predecessors(node)))
        for node in graph.nodes
        if not isinstance(node, int)
    )
    return groups == Counter({(what, frozenset(perm[d] for d in own)): n for (what, own), n in groups.items()})


def _closure(elements: list[Perm], most: int) -> frozenset[Perm] | None:
    """The group that `elements` generate, or None where one but the identity leaves a device in place."""
    identity = tuple(range(len(elements[0])))
    found = {identity}
    fresh = [identity]
    while fresh:
        one = fresh.pop()
        for other in elements:
            made = tuple(other[device] for device in one)
            if made not in found:
                if any(device == image for device, image in enumerate(made)) or len(found) == most:
                    return None
                found.add(made)
                fresh.append(made)
    return frozenset(found)
