"""What an aggregation plan comes to, counted for its checker: bytes, and the time of the busiest NIC or uplink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import chain
from math import ceil
from typing import NamedTuple

from treadle.planner.passes.aggregation.decisions import AggregationDecisions, ChunkMasters
from treadle.planner.passes.aggregation.problem import AggregationProblem

MIB = 1 << 20
UNIT = 1 << 200
"""Rates are whole parts of it: sums of thousands of fractions would have huge denominators."""
Groups = Sequence[Sequence[int]]


class CountedFigures(NamedTuple):
    """Bytes of all messages, of them those between near groups, and the predicted time."""

    total_bytes: int
    across_bytes: int
    time_ns: int


class HostLoads:
    """The bytes that leave and enter every host and every near group."""

    def __init__(self, problem: AggregationProblem, near: Groups) -> None:
        self.ns, self.near = problem.ns_per_MiB, near
        count = len(problem.hosts)
        self.home = {host: number for number, group in enumerate(near) for host in group}
        self.hosts = [[Fraction(0), Fraction(0)] for _ in range(count)]
        self.groups = [[Fraction(0), Fraction(0)] for _ in near]
        self.total = self.across = Fraction(0)

    def send(self, src: int, dst: int, count: Fraction | int) -> None:
        self.total += count
        self.hosts[src][0] += count
        self.hosts[dst][1] += count
        here, there = self.home[src], self.home[dst]
        if here != there:
            self.across += count
            self.groups[here][0] += count
            self.groups[there][1] += count

    def busy_ns(self) -> int:
        """How long the busiest NIC or uplink needs, in one direction."""
        times = [max(both) * nic for both, nic in zip(self.hosts, nics(self.ns), strict=True)]
        if len(self.near) > 1:
            times += [max(both) * cap for both, cap in zip(self.groups, self._uplinks(), strict=True)]
        return ceil(max(times, default=Fraction(0)) / MIB)

    def _uplinks(self) -> Iterator[Fraction]:
        rates = [UNIT // ns for ns in nics(self.ns)]
        for group in self.near:
            outside = sorted(self.home.keys() - set(group))
            shared = Fraction(UNIT * len(outside), sum(UNIT // self.ns[i][j] for j in outside for i in group))
            slowest = max(shared, Fraction(UNIT, sum(rates[i] for i in group)))
            yield slowest.limit_denominator(10**12)


def nics(ns_per_MiB: Sequence[Sequence[int]]) -> list[int]:
    """ns per MiB of each host's fastest pair."""
    return [min((cost for j, cost in enumerate(row) if j != i), default=0) for i, row in enumerate(ns_per_MiB)]


def counted(decisions: AggregationDecisions) -> CountedFigures:
    """The figures of the plan's own masters."""
    problem, groups, levels, chunks = decisions.problem, decisions.groups, decisions.levels, decisions.chunks
    if len(problem.hosts) == 1:
        return CountedFigures(0, 0, 0)
    traffic = HostLoads(problem, decisions.near)
    for (local, top), count in _together(chunks):
        for parent, child in _tree(groups, local, top):
            traffic.send(child, parent, count)
            traffic.send(parent, child, count)
    inside, across = latencies(problem.latency_ns, groups)
    fixed = 2 * (inside + across) if levels == 2 else 2 * inside
    fill = fill_ns(problem, max(chunk.bytes for chunk in chunks), levels)
    return CountedFigures(int(traffic.total), int(traffic.across), fixed + traffic.busy_ns() + fill)


def fill_ns(problem: AggregationProblem, largest: int, levels: int) -> int:
    """How long the largest chunk takes through its rounds alone, at the slowest NIC."""
    return ceil(Fraction(largest * max(nics(problem.ns_per_MiB)) * 2 * levels, MIB))


def _together(chunks: Sequence[ChunkMasters]) -> Iterator[tuple[tuple[tuple[int, ...], int], int]]:
    """The bytes of all chunks with the same masters."""
    found: dict[tuple[tuple[int, ...], int], int] = {}
    for chunk in chunks:
        key = chunk.local, chunk.top
        found[key] = found.get(key, 0) + chunk.bytes
    yield from found.items()


def _tree(groups: Groups, local: Sequence[int], top: int) -> Iterator[tuple[int, int]]:
    """(parent, child): the global master above the local ones, these above their members."""
    yield from ((top, master) for master in local if master != top)
    for group, master in zip(groups, local, strict=True):
        yield from ((master, member) for member in group if member != master)


def latencies(latency_ns: Sequence[Sequence[int]], groups: Groups) -> tuple[int, int]:
    """The largest latency inside a group, and between two."""
    home = {host: number for number, group in enumerate(groups) for host in group}
    inside = across = 0
    for i, j in chain.from_iterable(((i, j) for j in home if j != i) for i in home):
        if home[i] == home[j]:
            inside = max(inside, latency_ns[i][j])
        else:
            across = max(across, latency_ns[i][j])
    return inside, across
