"""Uplinks as ports: the link that the nodes of a rack share to all others.

A message holds an uplink for the uplink's beta times its bytes, from its send on, and for no alpha: messages enter one
after the other, at the uplink's rate on average. Links through an uplink that is slower than a NIC have its beta.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from treadle.planner.machine.nodes import RankUplink
from treadle.planner.passes.collective.algorithm import Port

Edge = tuple[int, int]


def uplink_ports(
    links: Mapping[Edge, float], uplinks: Mapping[RankUplink, int], others: Sequence[Port]
) -> Iterator[Port]:
    """Both directions of every uplink that limits more than `others`, the ports of NICs, and other uplinks do.

    `links` are those through NICs with their us per MB, `uplinks` the ns of one chunk.
    """
    plain = [(port.name, frozenset(port.links)) for port in others]
    sets: list[tuple[str, frozenset[Edge], int]] = []
    for uplink, ns in uplinks.items():
        for side in ("out", "in"):
            edges = frozenset(e for e in links if uplink.parts(*e) and (e[0] in uplink.ranks) == (side == "out"))
            if len(edges) < 2 or any(edges <= port for _, port in plain):
                continue
            if _together(edges, plain) * uplink.beta_us_per_MB > min(links[edge] for edge in edges) * (1 + 1e-9):
                sets.append((f"uplink {uplink.name} {side}", edges, ns))
    for i, (name, edges, ns) in enumerate(sets):
        slower = any(
            edges <= other and least >= ns and ((edges, ns) != (other, least) or j < i)
            for j, (_, other, least) in enumerate(sets)
            if j != i
        )
        if not slower:
            yield Port(name=name, links=tuple(sorted(edges)), beta_ns=ns)


def _together(edges: frozenset[Edge], ports: Iterable[tuple[str, frozenset[Edge]]]) -> int:
    """How many of the links can be busy at one time."""
    ports = list(ports)
    sides = [[port & edges for name, port in ports if name.endswith(side)] for side in (" out", " in")]
    return min(sum(map(bool, shared)) + len(edges.difference(*shared)) for shared in sides)
