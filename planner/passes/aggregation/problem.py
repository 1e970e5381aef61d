"""The problem of aggregating on measured hosts: their costs, and how many bytes are summed in which pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from treadle.planner.documents.cost_matrix import Slots
from treadle.planner.documents.costed_hosts import problems_of_costs, problems_of_hosts
from treadle.planner.documents.scalars import Count, Document, Name, Positive, Record

VERSION = 1
MOST_HOSTS = 512


class AggregatingHost(Record, frozen=True, kw_only=True):
    name: Name
    slots: Slots = 1


class AggregationProblem(Document, frozen=True, kw_only=True, tag_field="kind", tag="aggregation-problem"):
    """An allreduce of `size_bytes` on every host. A stream of b bytes from host i to host j, while other pairs send
    too, takes latency_ns[i][j] + ns_per_MiB[i][j] * b / 2^20; matrices are symmetric with zeros on the diagonal."""

    version: Positive
    hosts: tuple[AggregatingHost, ...]
    latency_ns: tuple[tuple[Count, ...], ...]
    ns_per_MiB: tuple[tuple[Count, ...], ...]
    size_bytes: Positive
    chunk_bytes: Positive = 65536
    """At most, of the pieces that the buffer is cut into."""
    connections: Annotated[int, Meta(ge=1, le=64)] = 1
    """Streams between two hosts, over which chunks are dealt out: a provider may cap the rate of each."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for everything that the types alone do not exclude."""
        count = len(self.hosts)
        if not 1 <= count <= MOST_HOSTS:
            yield "$.hosts", str(count), f"1 to {MOST_HOSTS} hosts"
        yield from problems_of_hosts([host.name for host in self.hosts], [host.slots for host in self.hosts])
        for field in ("latency_ns", "ns_per_MiB"):
            wrong = [*problems_of_costs(getattr(self, field), count, f"$.{field}")]
            yield from wrong
            if wrong:
                return
        for src, row in enumerate(self.ns_per_MiB):
            if any(not cost for dst, cost in enumerate(row) if dst != src):
                yield f"$.ns_per_MiB[{src}]", "0", "more than 0 between two hosts"
                return
