"""What the server pass decides: which core of which server handles each chunk, and what every part then carries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from treadle.planner.documents.scalars import Amount, Count, Decisions, Name, Positive, Record
from treadle.planner.passes.server.problem import LEAST_CHUNK, MOST_CHUNK, Aggregator, Engine, ServerProblem

Policy = Literal["key-by-interface", "worker-by-interface"]
Level = Literal["server", "domain", "interface", "core"]
Levels = Literal["flat", "two-level"]
"""With several racks: their servers are shards of all, or sums stay in a rack first."""
ChunkBytes = Annotated[int, Meta(ge=LEAST_CHUNK, le=MOST_CHUNK)]


class CoreSlot(Record, frozen=True, kw_only=True):
    """A core that handles chunks: `core` counts from 0 within the domain. `interface` is that of its connections; None
    where each worker has one of its own."""

    server: Count
    domain: Count
    core: Count
    interface: Count | None = None


class LevelLoad(Record, frozen=True, kw_only=True):
    """How evenly bytes are spread over the bins of one level, those of the same parent: the parent where it is worst.

    most_bytes / mean_bytes is at most `guarantee`; `optimal` where no other spread of that parent is proved to have
    less in its fullest bin.
    """

    level: Level
    bins: Positive
    most_bytes: Count
    total_bytes: Count
    optimal: bool = False


class PartLoad(Record, frozen=True, kw_only=True):
    """What one part carries while every worker pushes and pulls the model once. `load` is in bytes and `rate` in bytes
    per second; parts of which only the time is known have neither."""

    part: Name
    time_ns: Count
    load: Count | None = None
    rate: Positive | None = None


class RackSides(Record, frozen=True, kw_only=True):
    """ns per MiB of the model, one direction: a server in each rack as a shard of all, or two levels (both sides of the
    inequality of section 5.3)."""

    flat: Amount
    two_level: Amount


class NetworkCosts(Record, frozen=True, kw_only=True):
    """Throughput per 1000 of the currency."""

    baseline: Amount
    served: Amount


class ServerDecisions(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="server"):
    """`places[k][c]` is the slot of chunk c of key k; chunks of a key have `chunk_bytes` but for its last. Times in
    ns."""

    problem: ServerProblem
    chunk_bytes: ChunkBytes
    policy: Policy
    engine: Engine
    aggregator: Aggregator
    two_level: bool = False
    slots: tuple[CoreSlot, ...]
    places: tuple[tuple[Count, ...], ...]
    worker_interfaces: tuple[Count, ...] = ()
    """The interface of each worker, where it has one of its own."""
    levels: tuple[LevelLoad, ...]
    parts: tuple[PartLoad, ...]
    """Those of the busiest server first; the bottleneck is the first of those with the longest time."""
    racks: RackSides | None = None
    costs: NetworkCosts | None = None
    fill_ns: Count
    """What the first chunk takes on its path before the bottleneck is busy, and the last one after it."""
    time_ns: Count
    """The exchange of the whole model by all workers."""
    iteration_ns: Count
    """A step with its computation, which hides what is ready early."""
    most_workers: Count | None = None
    """How many workers the servers carry before they are the bottleneck; None where they never are."""
    server_bytes: Count
    """Memory that the fullest server takes."""

    def workers_of(self, server: int) -> range:
        """The workers that send their gradients to a server: with two levels those of its rack."""
        if not self.two_level:
            return range(self.problem.workers)
        in_rack = self.problem.workers // self.problem.racks
        return range(server * in_rack, (server + 1) * in_rack)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        for path, found, expected in self.problem.problems():
            yield path.replace("$", "$.decisions.problem", 1), found, expected
        if len(self.places) != len(self.problem.keys):
            yield "$.decisions.places", f"{len(self.places)} keys", f"{len(self.problem.keys)}, those of the problem"
