"""Paths for chunks that go to few ranks: cheapest ones first, links that already carry much cost more.

The price of a link is alpha + beta plus the busiest of what it occupies so far (itself and its ports), so that paths
spread over the network. A chunk with several targets takes the nearest target first and goes on from any rank of the
path (the heuristic of Takahashi and Matsuyama for Steiner trees). Every chunk is routed again `ROUNDS` times, with the
loads of all others known.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

from treadle.planner.errors import InputError
from treadle.planner.passes.collective.collectives import Chunk
from treadle.planner.passes.collective.matching import Hop, Line, lines_of
from treadle.planner.passes.collective.topology import Edge, LinkNetwork
from treadle.planner.passes.collective.translations import Translations

ROUNDS = 2


def forward(
    network: LinkNetwork, group: Translations, chunks: Sequence[tuple[int, Chunk]], *, pipelined: bool = False
) -> list[Hop]:
    """The hops of numbered chunks, in causal order for each chunk. With a group, the chunks of one rank of each orbit.

    Raises InputError where a target cannot be reached.
    """
    lines = {line.edge: line for line in lines_of(network, group, pipelined)}
    leaving: dict[int, list[int]] = defaultdict(list)
    for src, dst in sorted(network.links):
        leaving[src].append(dst)
    line_of = {
        (src, dst): lines[group.representative[src], group.moved(dst, src, back=True)] for src, dst in network.links
    }
    load = [0] * (1 + max((resource for line in lines.values() for resource in line.resources), default=0))
    routed: dict[int, list[Edge]] = {}

    def charge(edges: Sequence[Edge], sign: int) -> None:
        for edge in edges:
            line = line_of[edge]
            for resource, hold in zip(line.resources, line.holds, strict=True):
                load[resource] += sign * hold

    for _ in range(1 + ROUNDS):
        for number, chunk in chunks:
            charge(routed.get(number, ()), -1)
            routed[number] = _tree(chunk, leaving, line_of, load)
            charge(routed[number], 1)
    return [Hop(number, *edge) for number, _ in chunks for edge in routed[number]]


def _tree(chunk: Chunk, leaving: dict[int, list[int]], line_of: dict[Edge, Line], load: Sequence[int]) -> list[Edge]:
    inside = set(chunk.sources)
    missing = set(chunk.targets) - inside
    found: list[Edge] = []
    while missing:
        price = dict.fromkeys(inside, 0)
        before: dict[int, int] = {}
        heap = [(0, rank) for rank in sorted(inside)]
        done: set[int] = set()
        while heap:
            cost, rank = heapq.heappop(heap)
            if rank in done:
                continue
            done.add(rank)
            if rank in missing:
                break
            for other in leaving[rank]:
                if other in done:
                    continue
                line = line_of[rank, other]
                total = cost + line.lat + max(load[resource] for resource in line.resources)
                if total < price.get(other, total + 1):
                    price[other], before[other] = total, rank
                    heapq.heappush(heap, (total, other))
        else:
            raise InputError(
                f"rank {chunk.owner} cannot reach rank {min(missing)} over the links that the sketch leaves"
            )
        path = []
        at = rank
        while at not in inside:
            path.append((before[at], at))
            at = before[at]
        found += path[::-1]
        inside.update(dst for _, dst in path)
        missing -= inside
    return found
