"""Links and what they occupy, up to rotation: the machine as tree packing and periodic scheduling see it.

A rotation r -> r + shift (mod ranks) that maps links, costs and ports onto themselves makes all ranks that are `shift`
apart alike. One rank of each class then stands for all: a tree of root r gives, rotated, the trees of r + shift,
r + 2 shift, ..., and a link or port of the quotient carries what each link or port of its orbit carries. A port must
not hold two links of one orbit, so that the rotated copies of a message never meet on a port and leave at one time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from treadle.planner.passes.collective.algorithm import LinkCost, Port
from treadle.planner.passes.collective.problem import Problem
from treadle.planner.passes.collective.topology import Edge

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Fabric:
    """Links in the direction in which chunks spread, numbered up to rotation.

    `orbit[u, v]` is the number of link u -> v, -1 without a link. Link number i is occupied for `alpha[i]` +
    `beta[i]` ns by one chunk, and so are the ports `ports[i]`, also numbered up to rotation; `back[i]` is the number of
    the reversed link, -1 without one; it is None where nothing is sent back.
    """

    ranks: int
    shift: int
    orbit: Ints
    alpha: tuple[int, ...]
    beta: tuple[int, ...]
    ports: tuple[tuple[int, ...], ...]
    sending: tuple[bool, ...]
    """By port: whether it is shared at its senders' side."""
    back: tuple[int, ...] | None = None
    own: tuple[int | None, ...] = ()
    """By port: how many ns a chunk holds it, None where as long as its link."""

    def held(self, port: int, busy: int) -> int:
        """ns for which a chunk holds a port, over a link that it holds for `busy`."""
        own = self.own[port]
        return busy if own is None else own


def fabric_of(problem: Problem, rotate: bool = True) -> Fabric:
    """The plan's links, turned around for collectives that only reduce; for an allreduce those with a link back."""
    turn = problem.half == "inverted"

    def facing(edge: Edge) -> Edge:
        return (edge[1], edge[0]) if turn else edge

    links = {facing(edge): link for edge, link in problem.links.items()}
    ports = [replace(port, links=tuple(facing(edge) for edge in port.links)) for port in problem.ports]
    if problem.half == "both":
        links = {edge: link for edge, link in links.items() if (edge[1], edge[0]) in links}
        ports = [replace(port, links=tuple(edge for edge in port.links if edge in links)) for port in ports]
    shift = rotation(problem.ranks, links, ports) if rotate else problem.ranks
    return _numbered(problem.ranks, shift, links, ports, both=problem.half == "both")


def rotation(ranks: int, links: Mapping[Edge, LinkCost], ports: Sequence[Port]) -> int:
    """The least rotation that is a symmetry; `ranks`, the identity, if there is no other."""
    cost = np.full((ranks, ranks, 2), -1, dtype=np.int64)
    for (src, dst), link in links.items():
        cost[src, dst] = link.alpha_ns, link.beta_ns
    codes = {(frozenset(u * ranks + v for u, v in port.links), port.beta_ns) for port in ports}
    for shift in (s for s in range(1, ranks) if ranks % s == 0):
        if not np.array_equal(np.roll(cost, (shift, shift), axis=(0, 1)), cost):
            continue
        turned = {
            (frozenset((u + shift) % ranks * ranks + (v + shift) % ranks for u, v in port.links), port.beta_ns)
            for port in ports
        }
        alone = all(len({_standing(edge, shift, ranks) for edge in port.links}) == len(port.links) for port in ports)
        if turned == codes and alone:
            return shift
    return ranks


def _standing(edge: Edge, shift: int, ranks: int) -> Edge:
    """The link of the orbit of `edge` that leaves one of the first `shift` ranks."""
    base = edge[0] // shift * shift
    return edge[0] - base, (edge[1] - base) % ranks


def _numbered(ranks: int, shift: int, links: dict[Edge, LinkCost], ports: list[Port], *, both: bool) -> Fabric:
    standing = {edge: _standing(edge, shift, ranks) for edge in links}
    number = {edge: i for i, edge in enumerate(sorted(set(standing.values())))}
    orbit = np.full((ranks, ranks), -1, dtype=np.int64)
    for edge, one in standing.items():
        orbit[edge] = number[one]
    seen: dict[frozenset[int], int] = {}
    sides: list[bool] = []
    own: list[int | None] = []
    holders: dict[int, set[int]] = defaultdict(set)
    for port in ports:
        members = frozenset(number[standing[edge]] for edge in port.links)
        group = seen.setdefault(members, len(seen))
        if group == len(sides):
            sides.append(len({edge[0] for edge in port.links}) <= len({edge[1] for edge in port.links}))
            own.append(port.beta_ns)
        for member in members:
            holders[member].add(group)
    costs = [links[edge] for edge in number]
    return Fabric(
        ranks=ranks,
        shift=shift,
        orbit=orbit,
        alpha=tuple(link.alpha_ns for link in costs),
        beta=tuple(link.beta_ns for link in costs),
        ports=tuple(tuple(sorted(holders[i])) for i in range(len(number))),
        sending=tuple(sides),
        back=tuple(int(orbit[dst, src]) for src, dst in number) if both else None,
        own=tuple(own),
    )
