"""The problem of ordering hosts: what a hop between two of them costs, and what the library does by place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from treadle.planner.documents.cost_matrix import Slots
from treadle.planner.documents.costed_hosts import MOST_NS, problems_of_costs, problems_of_hosts
from treadle.planner.documents.scalars import MEBIBYTE, Count, Document, Name, Positive, Rank, Record

VERSION = 1
Algorithm = Literal["ring", "halving-doubling", "tree", "double-tree", "bcube", "nccl-ring", "nccl-tree", "plan"]
"""What a library does with its list of hosts; `plan` is any collective plan of ours, as hops."""
Objective = Literal["sum", "bottleneck", "bytes"]
"""sum: the cost model of the algorithm. bottleneck: the dearest hop, then the sum. bytes: the cost model where a hop
costs its latency times its bytes."""


class RankedHost(Record, frozen=True, kw_only=True):
    name: Name
    slots: Slots = 1


class PlanHop(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`bytes` go from place `src` to place `dst` once the hops `after`, earlier ones of the list, have arrived. Both
    places may be the same host: it costs nothing."""

    src: Rank
    dst: Rank
    bytes: Count
    after: tuple[Count, ...] = ()


class RanksProblem(Document, frozen=True, kw_only=True, tag_field="kind", tag="ranks-problem"):
    """A hop of b bytes from host i to host j costs latency_ns[i][j] + ns_per_MiB[i][j] * b / 2^20, rounded up; both
    matrices are symmetric, with zeros on the diagonal. Hosts are in the order in which they were handed out."""

    version: Positive
    hosts: tuple[RankedHost, ...]
    latency_ns: tuple[tuple[Count, ...], ...]
    ns_per_MiB: tuple[tuple[Count, ...], ...] | None = None
    """None where only latencies are known: then a hop costs its latency, whatever its bytes."""
    size_bytes: Count = 0
    """What every rank has to add up."""
    algorithm: Algorithm
    objective: Objective = "sum"
    factors: tuple[Positive, ...] = ()
    """BCube: hosts in a group by round, whose product is the number of hosts."""
    hops: tuple[PlanHop, ...] = ()
    """Those of `plan`."""
    near: tuple[tuple[Rank, ...], ...] = ()
    """Groups of hosts that share a link to the others: several, or none. They count for the prediction only."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for everything that the types alone do not exclude."""
        count = len(self.hosts)
        if not count:
            yield "$.hosts", "none", "at least one host"
        yield from problems_of_hosts([host.name for host in self.hosts], [host.slots for host in self.hosts])
        for field in ("latency_ns", "ns_per_MiB"):
            matrix = getattr(self, field)
            if matrix is not None:
                yield from problems_of_costs(matrix, count, f"$.{field}")
        for place, hop in enumerate(self.hops):
            if max(hop.src, hop.dst) >= count or any(before >= place for before in hop.after):
                yield f"$.hops[{place}]", f"{hop.src} -> {hop.dst} after {hop.after}", "places of hosts, earlier hops"
        largest = max([self.size_bytes, *(hop.bytes for hop in self.hops)])
        dearest = max((max(row) for row in self.ns_per_MiB or () if row), default=0) * largest // MEBIBYTE
        if dearest > MOST_NS:
            yield "$.size_bytes", f"{largest} bytes, which take a pair {dearest} ns", f"at most {MOST_NS} ns"
        product = 1
        for factor in self.factors:
            product *= factor
        if self.algorithm == "bcube" and (product != count or 1 in self.factors):
            yield "$.factors", " * ".join(map(str, self.factors)) or "none", f"numbers above 1 whose product is {count}"
        if self.algorithm != "bcube" and self.factors:
            yield "$.factors", "some", "none but for bcube"
        if (self.algorithm == "plan") != bool(self.hops):
            yield "$.hops", f"{len(self.hops)} of {self.algorithm}", "hops for `plan` and only for it"
        if self.near and sorted(host for group in self.near for host in group) != [*range(count)]:
            yield "$.near", f"{len(self.near)} groups", f"each of the {count} hosts once, or no groups"
        if len(self.near) == 1 or not all(self.near) or (self.near and self.ns_per_MiB is None):
            yield "$.near", f"{len(self.near)} groups", "none, or several with hosts and with rates"
        elif self.near and any(
            not ns for i, row in enumerate(self.ns_per_MiB or ()) for j, ns in enumerate(row) if i != j
        ):
            yield "$.near", f"{len(self.near)} groups", "none where bytes take no time"
