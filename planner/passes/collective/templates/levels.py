"""Trees of two levels: from node to node over chosen pairs of devices, inside each node along a chain or a star.

Rank = node * per_node + device; a pair (o, i) stands for the links from device o of any node to device i of any other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from treadle.planner.errors import InputError
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.templates.hamilton import cheapest_path
from treadle.planner.passes.collective.templates.template import links_of, network_ports
from treadle.planner.passes.collective.topology import Edge

Shape = Literal["chain", "star"]
Leg = tuple[int, int, int]
"""(hops before it, source, destination)"""


@dataclass(frozen=True)
class Levels:
    """Costs (ns of a chunk) inside a node and across, in the direction in which chunks spread."""

    per_node: int
    nodes: int
    local: dict[Edge, int]
    across: dict[Edge, int]
    sharing: tuple[list[int], list[int]]
    """By device: the network port it leaves and enters by."""
    load: Counter[tuple[str, int]] = field(default_factory=Counter)
    made: dict[tuple[object, ...], tuple[Edge, ...]] = field(default_factory=dict)

    def pair(self, device: int, target: int | None = None) -> Edge:
        """The pair by which chunks of `device` (for device `target` elsewhere) leave: few hops inside the nodes, then
        cheap links, then little used ports. Counts its use. Raises InputError where there is no pair."""
        if not self.across:
            raise InputError("needs links between nodes, which the sketch does not include", where="method")
        leaving, entering = self.sharing

        def key(pair: Edge) -> tuple[int, ...]:
            out, into = pair
            hops = (out != device) + (target is not None and into != target)
            busy = self.load["out", leaving[out]] + self.load["in", entering[into]]
            return hops, self.across[pair], busy, (into - out) % self.per_node, out

        best = min(self.across, key=key)
        self.load["out", leaving[best[0]]] += 1
        self.load["in", entering[best[1]]] += 1
        return best

    def inside(self, start: int, wanted: Iterable[int], shape: Shape, second: int | None = None) -> tuple[Edge, ...]:
        """Links from device `start` to all `wanted` devices, parents first; a chain takes `second` as its next.

        Raises InputError where one is out of reach.
        """
        needed = frozenset(wanted) - {start}
        key = (start, needed, shape, second)
        if key not in self.made:
            self.made[key] = tuple(self._inside(start, needed, shape, second))
        return self.made[key]

    def _inside(self, start: int, needed: frozenset[int], shape: Shape, second: int | None) -> list[Edge]:
        if shape == "chain":
            prefixes = [(start, second), (start,)] if second not in (None, start) else [(start,)]
            for prefix in prefixes:
                found = cheapest_path(self.per_node, self.local, prefix)
                if found is not None:
                    order = found[1]
                    last = max((index for index, device in enumerate(order) if device in needed), default=0)
                    return list(pairwise(order[: last + 1]))
        import networkx as nx  # slow to import

        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_node(start)
        graph.add_weighted_edges_from((a, b, lat) for (a, b), lat in sorted(self.local.items()))
        paths = nx.single_source_dijkstra_path(graph, start)
        edges: dict[Edge, None] = {}
        for device in sorted(needed, key=lambda d: ((d - start) % self.per_node, d)):
            if device not in paths:
                message = f"needs a path from device {start} to {device} of a node, which the sketch does not include"
                raise InputError(message, where="method")
            edges |= dict.fromkeys(pairwise(paths[device]))
        return list(edges)


def levels(problem: Problem, size: int, turned: bool) -> Levels:
    """The two levels of the problem's links, turned around or not, with `size` ranks as a node."""
    links = links_of(problem, turned)
    cost = {edge: link.alpha_ns + link.beta_ns for edge, link in links.items()}
    return Levels(
        per_node=size,
        nodes=problem.ranks // size,
        local={edge: lat for edge, lat in cost.items() if max(edge) < size},
        across={(src, dst - size): lat for (src, dst), lat in cost.items() if src < size <= dst < 2 * size},
        sharing=network_ports(problem, size, turned),
    )


def legs(
    level: Levels, owner: int, targets: Iterable[int], route: Sequence[Edge], pair: Edge | None, shape: Shape
) -> list[Leg]:
    """How a chunk gets from rank `owner` to `targets`: over the tree `route` of nodes by `pair`, and on inside."""
    size = level.per_node
    wanted: dict[int, set[int]] = defaultdict(set)
    for target in targets:
        wanted[target // size].add(target % size)
    passing = {a for a, _ in route}
    depth = {owner: 0}
    found: list[Leg] = []

    def go(src: int, dst: int) -> None:
        if dst not in depth:
            depth[dst] = depth[src] + 1
            found.append((depth[src], src, dst))

    def within(node: int, start: int) -> None:
        needed = set(wanted[node])
        second = None
        if node in passing and pair is not None:
            needed.add(pair[0])
            second = pair[0]
        for a, b in level.inside(start % size, needed, shape, second):
            go(node * size + a, node * size + b)

    within(owner // size, owner)
    for a, b in route:
        assert pair is not None
        go(a * size + pair[0], b * size + pair[1])
        within(b, b * size + pair[1])
    return found
