"""The parts of a machine that serves parameters: what each of them carries, as measured or as its maker says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from treadle.planner.documents.scalars import Amount, Count, Document, Name, Positive, PositiveAmount, Record

VERSION = 1
Carrier = Literal["rdma", "tcp", "shared"]
"""How chunks reach the server: written by network cards, through the kernel's TCP, or in memory of one host."""


class ServerInterface(Record, frozen=True, kw_only=True):
    """A network card. GB are 10^9 bytes."""

    name: Name
    domain: Count = 0
    """The NUMA domain whose processor it hangs at."""
    link_gbps: PositiveAmount
    """Gbit/s of the line in each direction."""
    encoding: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the line rate that carries data."""
    slot_GBps: PositiveAmount | None = None
    """What its slot carries in each direction."""
    address: Name | None = None
    """Where it listens; the server's command line may say so instead."""


class ServerDomain(Record, frozen=True, kw_only=True):
    """A NUMA domain: cores next to memory."""

    cores: Positive


class ServerCosts(Record, frozen=True, kw_only=True):
    """What a core spends on one carrier, in us per MiB of gradients, and in us per message; and what a worker spends on
    a MiB that it sends and receives back."""

    receive_us_per_MB: Amount = 0.0
    add_us_per_MB: Amount = 0.0
    send_us_per_MB: Amount = 0.0
    message_us: Amount = 0.0
    """A chunk of one worker, both directions, beyond its bytes."""
    latency_us: Amount = 0.0
    """Until the other end, which sleeps, has begun on what it is sent; not spent by a core, and not on the wire."""
    worker_us_per_MB: Amount = 0.0


class ServerParts(Document, frozen=True, kw_only=True, tag_field="kind", tag="server-parts"):
    """One machine."""

    version: Positive
    name: Name
    domains: tuple[ServerDomain, ...]
    interfaces: tuple[ServerInterface, ...]
    memory_bytes: Positive | None = None
    memory_GBps: PositiveAmount | None = None
    """Reads and writes, half of each, of the whole machine."""
    bridge_GBps: PositiveAmount | None = None
    """What passes between all cards and memory, both directions added; only a loop over all cards at once shows it."""
    between_GBps: PositiveAmount | None = None
    """What passes between domains, both directions added."""
    cached_extra: Amount = 0.17
    """Memory traffic of sums whose lines stay in the cache, beyond what cards write and read, in bytes per byte of
    gradient."""
    optimize_us_per_MB: dict[str, Amount] = {}
    """A core's time for an optimizer on a MiB of weights, by its name."""
    costs: dict[Carrier, ServerCosts] = {}
    sources: dict[str, str] = {}
    """Where each number comes from, by path prefix without `$.`."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if not self.domains:
            yield "$.domains", "none", "at least one domain"
        if not self.interfaces:
            yield "$.interfaces", "none", "at least one interface"
        seen: set[str] = set()
        for place, interface in enumerate(self.interfaces):
            path = f"$.interfaces[{place}]"
            if interface.domain >= len(self.domains):
                yield f"{path}.domain", str(interface.domain), f"a domain below {len(self.domains)}"
            if interface.name in seen:
                yield f"{path}.name", f"second {interface.name!r}", "names that occur once"
            seen.add(interface.name)
