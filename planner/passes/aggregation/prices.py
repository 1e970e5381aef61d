"""What masters cost on measured hosts: latencies of the rounds, the busiest NIC or uplink, and the first chunk's time.

The rates of the problem are those under load: a host sends and receives as fast as its fastest pair, and a near group
as fast as its hosts' mean rates to all others add up to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import NamedTuple

import numpy as np

from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.machine.measured_network import nics_ns, uplinks_ns
from treadle.planner.passes.aggregation.decisions import AggregationRival, ChunkMasters
from treadle.planner.passes.aggregation.problem import AggregationProblem
from treadle.planner.passes.aggregation.traffic import Groups, leaving, pair_bytes


class MastersPrice(NamedTuple):
    """Bytes of all messages, those between near groups among them, and the predicted time."""

    total_bytes: int
    across_bytes: int
    time_ns: int


class NearPrices:
    """Prices on the hosts of `problem`, where the near groups share uplinks."""

    def __init__(self, problem: AggregationProblem, near: tuple[tuple[int, ...], ...]) -> None:
        self.problem, self.near = problem, near
        self.hosts = len(problem.hosts)

    @cached_property
    def nics(self) -> tuple[int, ...]:
        """ns per MiB of each host."""
        return nics_ns(self.problem.ns_per_MiB)

    @cached_property
    def uplinks(self) -> tuple[Fraction, ...]:
        """ns per MiB of each near group; empty for one group."""
        return uplinks_ns(self.problem.ns_per_MiB, self.near)

    def of(self, groups: Groups, chunks: Sequence[ChunkMasters]) -> MastersPrice:
        """The price of masters; one group is one level."""
        if self.hosts == 1:
            return MastersPrice(0, 0, 0)
        sent = pair_bytes(self.hosts, groups, chunks)
        hosts, across = sent.sum(1).tolist(), leaving(sent, self.near)
        levels, largest = min(2, len(groups)), max(chunk.bytes for chunk in chunks)
        fill = Fraction(largest * max(self.nics) * 2 * levels, MEBIBYTE)
        time = self._rounds_ns(groups) + self.busy_ns(hosts, across) + ceil(fill)
        return MastersPrice(sum(hosts), sum(across), time)

    def busy_ns(self, hosts: Iterable[int | Fraction], groups: Iterable[int | Fraction]) -> int:
        """What the busiest NIC or uplink takes for the bytes that leave hosts and near groups; as many enter."""
        times = [Fraction(count) * nic for count, nic in zip(hosts, self.nics, strict=True)]
        if self.uplinks:
            times += [Fraction(count) * uplink for count, uplink in zip(groups, self.uplinks, strict=True)]
        return ceil(max(times) / MEBIBYTE)

    def ring(self) -> AggregationRival:
        """The ring over all hosts, group by group."""
        order = [host for group in self.near for host in group]
        hops = list(zip(order, [*order[1:], *order[:1]], strict=True))
        if self.hosts == 1:
            return AggregationRival(name="ring", time_ns=0, across_bytes=0)
        sent = Fraction(2 * self.problem.size_bytes * (self.hosts - 1), self.hosts)
        home = {host: number for number, group in enumerate(self.near) for host in group}
        crossing = [home[src] for src, dst in hops if home[src] != home[dst]]
        busy = self.busy_ns([sent] * self.hosts, [sent * crossing.count(number) for number in range(len(self.near))])
        latency = max(self.problem.latency_ns[src][dst] for src, dst in hops)
        return AggregationRival(
            name="ring", time_ns=2 * (self.hosts - 1) * latency + busy, across_bytes=ceil(sent * len(crossing))
        )

    def _rounds_ns(self, groups: Groups) -> int:
        """The latencies of the rounds: into the masters and back."""
        latency = np.array(self.problem.latency_ns, dtype=np.int64)
        home = np.zeros(self.hosts, dtype=np.int64)
        for number, group in enumerate(groups):
            home[list(group)] = number
        same = home[:, None] == home[None, :]
        return 2 * int(latency[same].max()) + 2 * int(latency[~same].max(initial=0))
