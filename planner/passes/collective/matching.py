"""Time-expanded matching: whenever a link is free it takes a chunk that its far end lacks (TACOS, "topology-aware
collective synthesis").

The state is who holds and who has been promised what. At each event the free links are served, quick ones first and
equal ones in an order drawn from a seed; a link takes one of the chunks that fewest ranks have been promised. With a
group of translations only representatives of links are served, and each takes its whole orbit of chunks at once.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from treadle.planner.passes.collective.scheduling import Resource
from treadle.planner.passes.collective.topology import Edge, LinkNetwork
from treadle.planner.passes.collective.translations import Translations


class Hop(NamedTuple):
    """Chunk number `chunk` goes from `src` to `dst`."""

    chunk: int
    src: int
    dst: int


@dataclass(frozen=True)
class Rules:
    """`turns`: a rank sends one chunk to one peer at a time, as is needed where the hops will be run backwards and
    added up. `once`: a chunk enters each block of that many ranks over one link only. `slowest`: links with a larger
    alpha + beta are not used."""

    turns: bool = False
    once: int | None = None
    slowest: int | None = None
    pipelined: bool = False


@dataclass(frozen=True)
class Line:
    """A link that leaves a representative: what it occupies, and for how long; itself, for `busy`, comes first."""

    edge: Edge
    resources: tuple[int, ...]
    holds: tuple[int, ...]
    """By resource: for how long."""
    lat: int

    @property
    def busy(self) -> int:
        return self.holds[0]


def match(
    network: LinkNetwork,
    group: Translations,
    owners: Sequence[int],
    numbers: Sequence[int],
    rules: Rules,
    seed: int = 0,
) -> list[Hop] | None:
    """How the chunks called `numbers` spread from `owners` (representatives of `group`) to all ranks, in order of time.

    None where the rules leave a rank without some chunk.
    """
    table = group.table
    random = np.random.default_rng(seed)
    lines = lines_of(network, group, rules.pipelined)
    if rules.slowest is not None:
        lines = [line for line in lines if line.lat <= rules.slowest]
    count = len(owners)
    held = np.zeros((group.ranks, count), dtype=bool)
    held[list(owners), range(count)] = True
    promised = held.copy()
    rarity = np.ones(count, dtype=np.int64)
    size = rules.once
    blocks = None
    if size:
        blocks = np.zeros((group.ranks // size, count), dtype=bool)
        blocks[np.array(owners) // size, range(count)] = True
    sources = [table[:, line.edge[0]] for line in lines]
    targets = [table[:, line.edge[1]] for line in lines]
    busy_until = np.zeros(held.shape, dtype=np.int64) if rules.turns else None

    users: dict[int, list[int]] = defaultdict(list)
    leaving: dict[int, list[int]] = defaultdict(list)
    for index, line in enumerate(lines):
        leaving[line.edge[0]].append(index)
        for resource in line.resources:
            users[resource].append(index)
    free = [0] * (1 + max((r for line in lines for r in line.resources), default=0))
    left = group.ranks * count - count
    hops: list[Hop] = []
    arrivals: list[tuple[int, int, int, int]] = []
    """(time, chunk, rank, representative)"""
    releases: list[tuple[int, int]] = []
    """(time, line)"""
    awake = set(range(len(lines)))
    now = 0
    while left:
        order = sorted(awake)
        draws = random.random(len(order))
        noise = random.random(len(table) * count) if len(order) else None
        for _, _, index in sorted((lines[i].lat, draw, i) for i, draw in zip(order, draws, strict=True)):
            line = lines[index]
            if any(free[resource] > now for resource in line.resources):
                continue
            wanted = held[sources[index]] & ~promised[targets[index]]
            if blocks is not None and size and line.edge[0] // size != line.edge[1] // size:
                wanted &= ~blocks[targets[index] // size]
            if busy_until is not None:
                wanted &= busy_until[sources[index]] <= now
            found = np.flatnonzero(wanted)
            if not len(found):
                continue
            assert noise is not None
            best = found[np.argmin(rarity[found % count] + noise[found])]
            element, chunk = divmod(int(best), count)
            src, dst = int(sources[index][element]), int(targets[index][element])
            hops.append(Hop(numbers[chunk], src, dst))
            promised[dst, chunk] = True
            rarity[chunk] += 1
            left -= 1
            if blocks is not None and size:
                blocks[dst // size, chunk] = True
            if busy_until is not None:
                busy_until[src, chunk] = now + line.lat
            for resource, hold in zip(line.resources, line.holds, strict=True):
                free[resource] = now + hold
            heapq.heappush(arrivals, (now + line.lat, chunk, dst, group.representative[dst]))
            for hold in {*line.holds}:
                heapq.heappush(releases, (now + hold, index))
            if busy_until is not None and line.busy < line.lat:
                heapq.heappush(releases, (now + line.lat, index))
        if not left:
            break
        if not arrivals and not releases:
            return None
        now = min(entry[0][0] for entry in (arrivals, releases) if entry)
        awake = set()
        while arrivals and arrivals[0][0] == now:
            _, chunk, rank, home = heapq.heappop(arrivals)
            held[rank, chunk] = True
            awake.update(leaving[home])
        while releases and releases[0][0] == now:
            index = heapq.heappop(releases)[1]
            for resource in lines[index].resources:
                awake.update(users[resource])
            if rules.turns:
                awake.update(leaving[lines[index].edge[0]])
    return hops


def lines_of(network: LinkNetwork, group: Translations, pipelined: bool) -> list[Line]:
    """The links that leave representatives, with the orbits of links and ports they occupy as numbers."""
    home = group.representative
    ports: dict[Edge, list[Resource]] = defaultdict(list)
    own: dict[Resource, int] = {}
    orbits: dict[tuple[Edge, ...], int] = {}
    for port in network.ports:
        members = tuple(sorted({(home[src], group.moved(dst, src, back=True)) for src, dst in port.links}))
        if members not in orbits:
            orbits[members] = len(orbits)
            if port.beta_ns is not None:
                own["port", orbits[members], 0] = port.beta_ns
            for edge in members:
                ports[edge].append(("port", orbits[members], 0))
    number: dict[Resource, int] = {}
    lines = []
    for (src, dst), link in sorted(network.links.items()):
        if home[src] != src:
            continue
        uses: list[Resource] = [("link", src, dst), *ports[src, dst]]
        resources = tuple(number.setdefault(use, len(number)) for use in uses)
        lat = link.alpha_ns + link.beta_ns
        busy = link.beta_ns if pipelined else lat
        lines.append(Line((src, dst), resources, tuple(own.get(use, busy) for use in uses), lat))
    return lines
