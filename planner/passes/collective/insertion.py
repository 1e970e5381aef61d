"""Chunks that go to few ranks, put into a timetable one after the other; the late ones go first in the next one.

A chunk takes the path on which it arrives soonest, given what all chunks before it have reserved of links and ports: a
search by arrival times over the gaps that are left. With `detour` 1 it stays on paths with the least sum of latencies,
above 1 it may pass ranks from which the rest is up to `detour` times longer. A chunk with several targets takes the one
that it reaches soonest, then goes on from any rank of its tree.

The order decides. The first has chunks with the longest path first; then chunks move forward by how late they arrived,
with a little chance ("squeaky wheel optimization"), and the best timetable of all is kept.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from treadle.planner.passes.collective.collectives import Chunk
from treadle.planner.passes.collective.matching import Hop, Line, lines_of
from treadle.planner.passes.collective.topology import Edge, LinkNetwork
from treadle.planner.passes.collective.translations import Translations

Numbered = tuple[int, Chunk]

DETOURS = (1.0, 1.5)
LATE = 0.05
"""Part of the makespan by which chance moves a chunk."""


class Timetable(NamedTuple):
    """`hops` by the time at which they leave; `arrivals` by the place of the chunk in the list of chunks, in ns."""

    hops: list[Hop]
    arrivals: list[int]

    @property
    def end_ns(self) -> int:
        return max(self.arrivals, default=0)


def timetable(
    network: LinkNetwork, group: Translations, chunks: Sequence[Numbered], passes: int, *, pipelined: bool = False
) -> Timetable | None:
    """The best of `passes` timetables for numbered chunks (with a group, those of one rank of each orbit), None for no
    pass or where a rank cannot be reached."""
    room = _Reservations(network, group, pipelined)
    best: Timetable | None = None
    for detour in DETOURS:
        chance = Random(0)
        urgency = [float(room.farthest(chunk)) for _, chunk in chunks]
        for _ in range(passes // len(DETOURS)):
            order = sorted(range(len(chunks)), key=lambda place: (-urgency[place], place))
            found = room.timetable(chunks, order, detour)
            if found is None:
                return None
            if best is None or found.end_ns < best.end_ns:
                best = found
            for place, arrival in enumerate(found.arrivals):
                urgency[place] = (urgency[place] + arrival) / 2 + chance.random() * LATE * found.end_ns
    return best


class _Reservations:
    """The network as `lines_of` has it, with the least sums of latencies between ranks."""

    def __init__(self, network: LinkNetwork, group: Translations, pipelined: bool) -> None:
        lines = {line.edge: line for line in lines_of(network, group, pipelined)}
        self.leaving: dict[int, list[tuple[int, Line]]] = defaultdict(list)
        for src, dst in sorted(network.links):
            line = lines[group.representative[src], group.moved(dst, src, back=True)]
            self.leaving[src].append((dst, line))
        self.ranks = group.ranks
        self.away = [self._distances(rank) for rank in range(self.ranks)]

    def _distances(self, start: int) -> dict[int, int]:
        found: dict[int, int] = {}
        heap = [(0, start)]
        while heap:
            cost, rank = heapq.heappop(heap)
            if rank in found:
                continue
            found[rank] = cost
            for other, line in self.leaving[rank]:
                heapq.heappush(heap, (cost + line.lat, other))
        return found

    def farthest(self, chunk: Chunk) -> int:
        """The least sum of latencies to the target that is farthest."""
        return max(
            (min(self.away[source].get(target, 0) for source in chunk.sources) for target in chunk.targets), default=0
        )

    def timetable(self, chunks: Sequence[Numbered], order: Sequence[int], detour: float) -> Timetable | None:
        """All chunks, put in by `order`."""
        reserved: dict[int, list[tuple[int, int]]] = defaultdict(list)
        hops: list[tuple[int, int, Hop]] = []
        arrivals = [0] * len(chunks)
        for place in order:
            number, chunk = chunks[place]
            held = dict.fromkeys(sorted(chunk.sources), 0)
            missing = set(chunk.targets) - held.keys()
            while missing:
                path = self._path(held, missing, reserved, detour)
                if path is None:
                    return None
                for (src, dst), line, start in path:
                    for resource, hold in zip(line.resources, line.holds, strict=True):
                        _reserve(reserved[resource], start, start + hold)
                    held[dst] = start + line.lat
                    hops.append((start, len(hops), Hop(number, src, dst)))
                missing -= held.keys()
            arrivals[place] = max((held[target] for target in chunk.targets), default=0)
        return Timetable([hop for *_, hop in sorted(hops)], arrivals)

    def _path(
        self, held: dict[int, int], missing: set[int], reserved: dict[int, list[tuple[int, int]]], detour: float
    ) -> list[tuple[Edge, Line, int]] | None:
        """The hops to the missing target that is reached soonest, with the times at which they leave."""
        rest = {rank: min(away.get(target, _FAR) for target in missing) for rank, away in enumerate(self.away)}
        arrival = dict(held)
        before: dict[int, tuple[int, Line, int]] = {}
        heap = [(time, rank) for rank, time in held.items()]
        heapq.heapify(heap)
        done: set[int] = set()
        while heap:
            time, rank = heapq.heappop(heap)
            if rank in done:
                continue
            done.add(rank)
            if rank in missing:
                path = []
                while rank in before:
                    src, line, start = before[rank]
                    path.append(((src, rank), line, start))
                    rank = src
                return path[::-1]
            for other, line in self.leaving[rank]:
                if other in done or line.lat + rest[other] > detour * rest[rank]:
                    continue
                start = _gap(reserved, line, time)
                if start + line.lat < arrival.get(other, _FAR):
                    arrival[other] = start + line.lat
                    before[other] = rank, line, start
                    heapq.heappush(heap, (start + line.lat, other))
        return None


_FAR = 1 << 62


def _gap(reserved: dict[int, list[tuple[int, int]]], line: Line, time: int) -> int:
    """The first time from `time` on at which all that the line occupies is free for as long as it takes."""
    again = True
    while again:
        again = False
        for resource, hold in zip(line.resources, line.holds, strict=True):
            taken = reserved[resource]
            at = max(bisect(taken, (time, _FAR)) - 1, 0)
            while at < len(taken) and taken[at][0] < time + hold:
                if taken[at][1] > time:
                    time, again = taken[at][1], True
                at += 1
    return time


def _reserve(taken: list[tuple[int, int]], start: int, end: int) -> None:
    taken.insert(bisect(taken, (start, end)), (start, end))
