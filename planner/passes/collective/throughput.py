"""The fluid limit: how fast parts can spread over links and ports, whatever the routes (ForestColl, section 4).

A rank set S that misses some rank must pass |S| parts over the links that leave it, so allgather takes at least
max over S of |S| / B(S) per byte of a part, B(S) the rate at which S can send. Dinkelbach's method finds the worst
set: at a time x each rank is fed with 1 / x, and a rank that cannot take in ranks / x exposes, by a minimum cut, a set
that needs longer; that set's time is the next x. Rates are rounded up to 1 / SCALE of the fastest link, so that what
is found is never above the truth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil

import numpy as np
from numpy.typing import NDArray

from treadle.planner.passes.collective.topology import Edge
from treadle.planner.solver.max_flow import min_cuts

SCALE = 2**36
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Flow:
    """Links between ranks 0..ranks-1 through ports: port p is the pair of nodes ranks + 2p and ranks + 2p + 1.

    A link passes at most one port of each level at either side, that nearest to the rank first. What else links share
    is left out, and links that share a port are one behind it: both can only raise the flow.
    """

    ranks: int
    links: tuple[Edge, ...]
    ports: tuple[tuple[int, ...], ...]
    """By port: the numbers of its links."""
    out_ports: tuple[tuple[int, ...], ...]
    in_ports: tuple[tuple[int, ...], ...]
    """By level and link: its port at the sender's side and at the receiver's, -1 for none."""
    own: tuple[Fraction | None, ...] = ()
    """By port: its ns per unit; None for the ns of the link."""

    @property
    def nodes(self) -> int:
        return self.ranks + 2 * len(self.ports)

    def arcs(self, caps: Ints, limits: Ints) -> Ints:
        """Rows (tail, head, capacity); `caps` are those of links, `limits` those of ports."""
        src, dst = self._ends
        port = np.arange(len(self.ports), dtype=np.int64)
        return self._joined(src, dst, caps, self._out, self._into, port, limits, self.ranks)

    def _joined(
        self, tail: Ints, head: Ints, caps: Ints, out: Ints, into: Ints, port: Ints, limits: Ints, first: int
    ) -> Ints:
        """Arcs of links from the nodes `tail` to the nodes `head`, through ports whose nodes begin at `first`."""
        parts = [np.stack([first + 2 * port, first + 2 * port + 1, limits], axis=1)]
        for levels, enters, leaves in ((out, 0, 1), (into, 1, 0)):
            ends = tail if enters == 0 else head
            for member in levels:
                has = member >= 0
                node = first + 2 * np.where(has, member, 0)
                pairs = np.unique(np.stack([ends[has], node[has] + enters, member[has]], axis=1), axis=0).reshape(-1, 3)
                parts.append(np.stack([pairs[:, enters], pairs[:, leaves], limits[pairs[:, 2]]], axis=1))
                ends = np.where(has, node + leaves, ends)
            if enters == 0:
                tail = ends
            else:
                head = ends
        found: Ints = np.concatenate([*parts, _distinct(tail, head, caps)]).astype(np.int64)
        return found

    def crossing(self, source: frozenset[int]) -> Ints:
        """The numbers of the links that leave `source`."""
        src, dst = self._ends
        inside = np.zeros(self.ranks, dtype=bool)
        inside[list(source)] = True
        return np.flatnonzero(inside[src] & ~inside[dst])

    def rate(self, caps: Ints, limits: Ints, source: frozenset[int]) -> int:
        """What leaves `source` at best where link i carries `caps[i]`, and a port what its best link there would, or
        its own of `limits`."""
        links = self.crossing(source)
        best = np.zeros(len(self.ports) + 1, dtype=np.int64)
        for side in (*self._out, *self._into):
            np.maximum.at(best, side[links], caps[links])
        for port in self.owners:
            best[port] = limits[port]
        return self.through(links, caps[links], best)

    def through(self, links: Ints, caps: Ints, limits: Ints) -> int:
        """The greatest flow over parallel `links` of capacities `caps`, their ports shared and limited by `limits`."""
        out, into = self._out[:, links], self._into[:, links]
        both = np.concatenate([out, into])
        used = np.unique(both)
        used = used[used >= 0]
        if not len(used):
            return int(caps.sum())
        place = np.full(len(self.ports) + 1, -1, dtype=np.int64)
        place[used] = np.arange(len(used))
        out, into = place[out], place[into]
        if not ((both >= 0).sum(axis=0) > 1).any():  # no link has two ports: every port passes what it can
            load = np.zeros(len(used) + 1, dtype=np.int64)
            np.add.at(load, np.concatenate([out, into]).max(axis=0), caps)
            return int(np.minimum(load[:-1], limits[used]).sum() + load[-1])
        ends = np.zeros(len(links), dtype=np.int64)
        port = np.arange(len(used), dtype=np.int64)
        rows = self._joined(ends, ends + 1, caps, out, into, port, limits[used], 2)
        ((_, value, _),) = min_cuts(2 + 2 * len(used), rows, 0, [1])
        return value

    def passed(self, link: int) -> list[int]:
        """The ports of a link."""
        return [port[link] for port in (*self.out_ports, *self.in_ports) if port[link] >= 0]

    def busy(self, port: int, cost: Fraction) -> Fraction:
        """ns for which a unit holds a port, over a link on which it takes `cost`."""
        own = self.own[port] if self.own else None
        return cost if own is None else own

    @cached_property
    def _ends(self) -> tuple[Ints, Ints]:
        both = np.array(self.links, dtype=np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    @cached_property
    def _out(self) -> Ints:
        return np.array(self.out_ports, dtype=np.int64).reshape(len(self.out_ports), len(self.links))

    @cached_property
    def _into(self) -> Ints:
        return np.array(self.in_ports, dtype=np.int64).reshape(len(self.in_ports), len(self.links))

    @property
    def owners(self) -> list[int]:
        """The ports with a rate of their own."""
        return [port for port, own in enumerate(self.own) if own is not None]


def _distinct(tail: Ints, head: Ints, caps: Ints) -> Ints:
    """Parallel arcs as one: the sum of their capacities."""
    size = int(max(tail.max(initial=0), head.max(initial=0))) + 1
    keys, where = np.unique(tail * size + head, return_inverse=True)
    total = np.zeros(len(keys), dtype=np.int64)
    np.add.at(total, where, caps)
    return np.stack([keys // size, keys % size, total], axis=1)


def flow_of(
    ranks: int,
    links: Sequence[Edge],
    ports: Iterable[Iterable[Edge]],
    uplinks: Iterable[tuple[Iterable[Edge], Fraction]] = (),
) -> Flow:
    """`links` in the order in which capacities will be given; `uplinks` are ports with ns per unit of their own."""
    number = {edge: i for i, edge in enumerate(links)}
    out, into = [[-1] * len(links)], [[-1] * len(links)]
    kept: list[tuple[int, ...]] = []
    own: list[Fraction | None] = []
    for port in ports:
        members = [number[edge] for edge in port if edge in number]
        senders, receivers = {links[i][0] for i in members}, {links[i][1] for i in members}
        if len(members) < 2:
            continue
        first, second = (out[0], into[0]) if len(senders) <= len(receivers) else (into[0], out[0])
        side = first if all(first[i] < 0 for i in members) else second
        free = tuple(i for i in members if side[i] < 0)
        for i in free:
            side[i] = len(kept)
        kept.append(free)
        own.append(None)
    shared = [([number[edge] for edge in port if edge in number], byte) for port, byte in uplinks]
    for members, byte in sorted((entry for entry in shared if entry[0]), key=lambda entry: len(entry[0])):
        senders, receivers = {links[i][0] for i in members}, {links[i][1] for i in members}
        levels = out if len(senders) <= len(receivers) else into
        if any(any(level[i] >= 0 for i in members) for level in levels[-1:]):
            levels.append([-1] * len(links))
        for i in members:
            levels[-1][i] = len(kept)
        kept.append(tuple(members))
        own.append(byte)
    return Flow(ranks, tuple(links), tuple(kept), tuple(map(tuple, out)), tuple(map(tuple, into)), tuple(own))


def rates(flow: Flow, cost: Sequence[Fraction], unit: Fraction) -> tuple[Ints, Ints]:
    """(links, ports): SCALE * unit / cost, rounded up; a port without a rate of its own is as fast as its fastest link.
    `cost` is ns per byte (or per piece) of each link."""
    caps = np.array([ceil(unit / c * SCALE) for c in cost], dtype=np.int64)
    limits = np.array(
        [
            max((int(caps[i]) for i in port), default=0) if own is None else ceil(unit / own * SCALE)
            for port, own in zip(flow.ports, flow.own, strict=True)
        ],
        dtype=np.int64,
    )
    return caps, limits


def worst_sets(
    flow: Flow, cost: Sequence[Fraction], weight: Sequence[int], sinks: Iterable[int]
) -> tuple[Fraction, list[frozenset[int]]]:
    """The least ns in which every sink can take in `weight[r]` units of every rank r, and the rank sets met in
    between, the last of which proves it. `sinks` are ranks that stand for all (by symmetry)."""
    n, sinks = flow.ranks, list(sinks)
    unit = min(cost)
    caps, limits = rates(flow, cost, unit)
    arcs = flow.arcs(caps, limits)
    into = {sink: frozenset(range(n)) - {sink} for sink in sinks}
    best, met = Fraction(0), []
    for sink in sinks:
        time = _time(flow, caps, limits, into[sink], weight, unit)
        if time > best:
            best, met = time, [into[sink]]
    improved = best > 0
    while improved:
        improved = False
        supply = [ceil(w * unit / best * SCALE) for w in weight]
        feed = [[flow.nodes, rank, supply[rank]] for rank in range(n) if weight[rank]]
        whole = sum(row[2] for row in feed)
        rows = np.concatenate([arcs, np.array(feed, dtype=np.int64)])
        for _, value, side in min_cuts(flow.nodes + 1, rows, flow.nodes, sinks):
            source = frozenset(node for node in side if node < n)
            if value >= whole or not source or source in met:
                continue
            time = _time(flow, caps, limits, source, weight, unit)
            if time > best:
                best, improved = time, True
                met.append(source)
                break
    return best, met


def _time(
    flow: Flow, caps: Ints, limits: Ints, source: frozenset[int], weight: Sequence[int], unit: Fraction
) -> Fraction:
    sent = sum(weight[rank] for rank in source)
    if not sent:
        return Fraction(0)
    rate = flow.rate(caps, limits, source)
    if not rate:
        return Fraction(10**18)
    return sent * unit * SCALE / rate


def transported(flow: Flow, links: Ints, alpha: Ints, byte: Floats, time: int, demand: Fraction) -> bool:
    """Whether `demand` bytes may cross `links` in `time` ns; `alpha` and `byte` are theirs, in ns and ns per byte.

    Capacities are rounded up, so False is a proof.
    """
    if time <= 0:
        return False
    whole = 2**40
    most = 4 * whole

    def bytes_in(ns: Floats, each: Floats) -> Ints:
        found: Ints = np.ceil(np.minimum(ns / each * (whole / float(demand) * (1 + 1e-12)), most)).astype(np.int64)
        return found

    caps = bytes_in(np.maximum(time - alpha, 0), byte)
    count = len(flow.ports) + 1
    least_alpha, least_byte = np.full(count, np.inf), np.full(count, np.inf)
    for side in (*flow._out, *flow._into):
        np.minimum.at(least_alpha, side[links], alpha)
        np.minimum.at(least_byte, side[links], byte)
    for port in flow.owners:
        least_byte[port] = float(flow.busy(port, Fraction(1)))
    limits = bytes_in(np.maximum(time - least_alpha, 0), least_byte)
    return flow.through(links, caps, limits) >= whole
