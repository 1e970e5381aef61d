"""What it costs to send between every two of some hosts, as it was measured: latencies, and rates of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from treadle.planner.documents.scalars import Amount, Count, Document, Name, Positive, PositiveAmount, Rank, Record

VERSION = 1
MOST_HOSTS = 4096
Percent = Annotated[float, Meta(ge=0, le=100)]
Slots = Annotated[int, Meta(ge=1, le=1024)]


class CostHost(Record, frozen=True, kw_only=True):
    """A host by the name under which launchers know it. `position` says where it stands, if anybody knows: region,
    datacenter, cluster, row, rack, host, or the first of these."""

    name: Name
    address: Name | None = None
    slots: Slots = 1
    """Processes, one for each GPU, that a job starts here."""
    position: tuple[Count, ...] = ()


class PairRate(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Bytes per second from host `src` to host `dst`, by their places in `hosts`."""

    src: Rank
    dst: Rank
    bytes_per_second: PositiveAmount


class Asymmetry(Record, frozen=True, kw_only=True):
    """How far the two directions of a pair were apart before they were made one: larger over smaller."""

    median: Amount
    largest: Amount
    pair: tuple[Rank, Rank]
    """The pair with the largest one."""


class Probing(Record, frozen=True, kw_only=True):
    """How the latencies were measured: `percentile` of `probes` echoes of each direction of a pair. Over all pairs,
    `lost` of them never came back and `late` ones came when they were not waited for any more."""

    probes: Positive
    percentile: Percent
    lost: Count = 0
    late: Count = 0
    asymmetry: Asymmetry | None = None


class CostMatrix(Document, frozen=True, kw_only=True, tag_field="kind", tag="cost-matrix"):
    """`latency_us[i][j]` is half of a round trip from host i to host j, None where it was not measured, 0 on the
    diagonal. Rates are those of one stream while the other pairs of the same round of the schedule send too, each host
    in one pair only: a link that many pairs share shows as a low rate of all of them. Rates may be of some pairs."""

    version: Positive
    name: Name
    hosts: tuple[CostHost, ...]
    latency_us: tuple[tuple[Amount | None, ...], ...]
    rates: tuple[PairRate, ...] = ()
    measured_at: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")] | None = None
    """UTC."""
    probing: Probing | None = None
    sources: dict[str, str] = {}
    """Where the numbers come from, by path prefix without `$.`."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for everything that the types alone do not exclude."""
        count = len(self.hosts)
        if not 1 <= count <= MOST_HOSTS:
            yield "$.hosts", str(count), f"1 to {MOST_HOSTS} hosts"
        seen: dict[str, int] = {}
        for place, host in enumerate(self.hosts):
            if host.name in seen:
                yield (
                    f"$.hosts[{place}].name",
                    f"{host.name!r} again",
                    f"another name than that of hosts[{seen[host.name]}]",
                )
            seen.setdefault(host.name, place)
        if len(self.latency_us) != count:
            yield "$.latency_us", f"{len(self.latency_us)} rows", f"one for each of {count} hosts"
        for place, row in enumerate(self.latency_us):
            if len(row) != count:
                yield f"$.latency_us[{place}]", f"{len(row)} numbers", f"one for each of {count} hosts"
            elif place < count and row[place] != 0:
                yield f"$.latency_us[{place}][{place}]", str(row[place]), "0, from a host to itself"
        if self.measured_at is not None and not _is_moment(self.measured_at):
            yield "$.measured_at", repr(self.measured_at), "a day and a time that exist"
        pairs: set[tuple[int, int]] = set()
        for place, rate in enumerate(self.rates):
            pair = (rate.src, rate.dst)
            if max(pair) >= count or rate.src == rate.dst:
                yield f"$.rates[{place}]", f"{rate.src} -> {rate.dst}", f"two different hosts below {count}"
            elif pair in pairs:
                yield f"$.rates[{place}]", f"{rate.src} -> {rate.dst} again", "each pair once"
            pairs.add(pair)


def _is_moment(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
