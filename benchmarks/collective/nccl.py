"""NCCL's own algorithms: the tuner table of eight H100, and the model against published times of NCCL and RCCL.

Published times are those of the sources that rows name; none of them went into the model's numbers, but for MI300X the
profile's rate of links is fitted to XML programs on the same machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.common import Row, Table
from treadle.planner.documents.collective import Collective
from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.nccl_costs import NcclLibrary
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.machine.nccl import NcclMachine, best, candidates, library_of
from treadle.planner.passes.collective.rivals import rivals
from treadle.probe.nccl_library_fit import FAR, fit_library
from treadle.probe.nccl_tests import Collective as Tested
from treadle.probe.nccl_tests import CollectiveTimes
from treadle.probe.resolve import load_hardware

ND_H100 = "Azure/msccl, README.md (ND H100 v5): NCCL"
A100 = "microsoft/msccl-leaderboard, data/1xNDv4/Allreduce-inplace/nccl.txt (8 A100)"
MI300X = "rouge3877/ns3-msccl-data: stock RCCL 2.21.5, ROCm 6.3, out of place (8 MI300X)"
SIX = (2**10, 2**16, 2**20, 2**24, 2**28, 2**32)


class Published(NamedTuple):
    """us by bytes as nccl-tests counts them."""

    profile: str
    collective: Tested
    times: dict[int, float]
    source: str


PUBLISHED = (
    Published("ndv5", "allreduce", {2**10: 13.1}, ND_H100),
    Published("ndv5", "allgather", {2**10: 9.54}, ND_H100),
    Published("ndv4", "allreduce", {2**11: 18.7, 2**15: 31.7, 2**19: 55.6, 2**23: 154.4}, A100),
    Published("mi300x", "allreduce", dict(zip(SIX, (18.7, 28.0, 53.0, 155.0, 1542.0, 23760.0), strict=True)), MI300X),
    Published("mi300x", "allgather", dict(zip(SIX, (17.6, 19.2, 35.4, 96.0, 807.0, 12100.0), strict=True)), MI300X),
)


def tables() -> Iterator[Table]:
    """NCCL's own algorithms by size on eight H100, and its model against published times of NCCL and RCCL."""
    for collective in ("allreduce", "allgather", "reducescatter"):
        yield tuner(collective)
    yield errors()
    yield held_out()


def tuner(collective: Collective) -> Table:
    """What the tuner file of eight H100 says."""
    found = rivals(load_hardware("ndv5"), collective, (), lambda size: None)
    rows: list[Row] = [
        {
            "from": format_bytes(each.min_bytes),
            "to": format_bytes(each.max_bytes),
            "algorithm": each.algorithm,
            "protocol": each.protocol,
            "channels": " to ".join(dict.fromkeys(map(str, each.channels))),
            "us": each.time_us[0],
            "to us": each.time_us[1],
        }
        for each in found
    ]
    return Table(f"{collective} on 8 H100, by the input of one rank: NCCL's best by its model of itself", rows)


def errors() -> Table:
    """The model without any factor against every published time."""
    rows = [
        _row(each, load_hardware(each.profile), size, time) for each in PUBLISHED for size, time in each.times.items()
    ]
    sources = tuple(dict.fromkeys(f"{each.profile}: {each.source}" for each in PUBLISHED))
    return Table("NCCL's model of itself over published times, no factor fitted", rows, (_share(rows), *sources))


def held_out() -> Table:
    """The model with factors fitted to every other size, on the sizes that the fit did not see."""
    rows = []
    for profile in dict.fromkeys(each.profile for each in PUBLISHED):
        mine = [each for each in PUBLISHED if each.profile == profile and len(each.times) > 1]
        if not mine:
            continue
        hardware = load_hardware(profile)
        seen = [CollectiveTimes(each.collective, hardware.ranks, 1, _every_other(each.times, 0)) for each in mine]
        fit = fit_library(seen, hardware, hardware, NcclLibrary())
        assert fit is not None
        for each in mine:
            rows += [_row(each, fit.hardware, size, time) for size, time in _every_other(each.times, 1).items()]
    return Table("The same with factors fitted to every other size; rows are the sizes held out", rows, (_share(rows),))


def _every_other(times: dict[int, float], first: int) -> dict[int, float]:
    return dict(list(times.items())[first::2])


def _row(published: Published, hardware: Hardware, size: int, time: float) -> Row:
    """What NCCL takes by its own numbers is what it runs; its time is that of the profile's factors."""
    library = library_of(hardware)
    assert isinstance(library, NcclMachine), library
    chosen = best(candidates(library.own, published.collective), size).method
    priced = next(each for each in candidates(library, published.collective) if each.method == chosen)
    ratio = priced.time_us(size) / time
    return {
        "profile": published.profile,
        "collective": published.collective,
        "bytes": format_bytes(size),
        "NCCL takes": chosen,
        "published us": time,
        "model us": round(priced.time_us(size), 1),
        "model / published": ratio,
        "": "miss" if abs(ratio - 1) > FAR else "",
    }


def _share(rows: Sequence[Row]) -> str:
    near = [row for row in rows if not row[""]]
    return f"{len(near)} of {len(rows)} within a third of the published time; the others are marked as misses"
