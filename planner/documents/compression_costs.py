"""What compressing gradients costs on one machine: curves over sizes, as they were measured or fitted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from treadle.planner.documents.scalars import Count, Document, Name, Positive, Record

VERSION = 1
Place = Literal["device", "host"]
"""Where a compressor runs: on the device that computes gradients, which it delays, or on the host's cores, from and to
which gradients are copied."""
Scope = Literal["flat", "intra", "inter"]
"""Who takes part in a collective: all ranks, those of a node, or those of one local index on all nodes."""
Routine = Literal["allreduce", "reduce-scatter", "allgather", "alltoall", "reduce", "broadcast", "gather", "planned"]
"""`planned` is an allreduce by a plan of collectives."""
Point = tuple[Count, Count]
"""A size, and the time in ns."""


class Curve(Record, frozen=True, kw_only=True):
    """Time over size, linear between points of ascending sizes and beyond the last two; constant below the first, and
    everywhere if that is the only one. A size of 0 takes no time."""

    points: tuple[Point, ...]

    def at(self, size: int) -> int:
        """ns, rounded to nearest, halves up."""
        if size <= 0:
            return 0
        return interpolated(self.points, size)

    def problems_at(self, path: str, value: str = "time", unit: str = "ns") -> Iterator[tuple[str, str, str]]:
        """(path, found, expected) for what is no curve of a `value` in `unit`."""
        if not self.points:
            yield f"{path}.points", "no point", "at least one"
        for place, (one, other) in enumerate(zip(self.points, self.points[1:], strict=False)):
            if one[0] >= other[0]:
                yield f"{path}.points[{place + 1}][0]", str(other[0]), f"a size above {one[0]}"
            if one[1] > other[1]:
                yield f"{path}.points[{place + 1}][1]", str(other[1]), f"a {value} of at least {one[1]} {unit}"


def interpolated(points: Sequence[Point], at: int) -> int:
    """The value of a piecewise linear curve."""
    if at <= points[0][0] or len(points) == 1:
        return points[0][1]
    place = min(bisect_right(points, at, key=lambda point: point[0]), len(points) - 1)
    (x, y), (far, top) = points[place - 1], points[place]
    width = far - x
    return y + (2 * (top - y) * (at - x) + width) // (2 * width)


def over_pieces(known: Sequence[Point], pieces: int) -> int:
    """The time of `pieces` from that of known numbers of them."""
    if len(known) == 1:
        return known[0][1] * pieces // known[0][0]
    return interpolated(known, pieces)


class DecodeCurve(Record, frozen=True, kw_only=True):
    """Time to decode `pieces` payloads of as many elements each and to add them up, over the elements of one."""

    pieces: Positive
    points: tuple[Point, ...]


class CompressorCost(Record, frozen=True, kw_only=True):
    """One compressor at one place."""

    name: Name
    """`ALGORITHM[:RATIO|:RANK]`, or any name in a problem written by hand, which then states `wire`."""
    place: Place = "device"
    encode: Curve
    """Over elements; copies to and from the host included for place `host`."""
    decode: tuple[DecodeCurve, ...]
    """By pieces, ascending; linear between them and beyond the last two, in proportion if there is one only."""
    wire: Curve | None = None
    """Bytes over elements, for a compressor that treadle does not have."""

    def decode_ns(self, elements: int, pieces: int) -> int:
        """Time to decode and add up `pieces` payloads of `elements` each."""
        if elements <= 0 or not self.decode:
            return 0
        return over_pieces([(curve.pieces, interpolated(curve.points, elements)) for curve in self.decode], pieces)

    def problems_at(self, path: str) -> Iterator[tuple[str, str, str]]:
        """(path, found, expected) for curves that are none."""
        yield from self.encode.problems_at(f"{path}.encode")
        if self.wire is not None:
            yield from self.wire.problems_at(f"{path}.wire", "payload", "bytes")
        if not self.decode:
            yield f"{path}.decode", "no curve", "at least one; points [[0, 0]] decode in no time"
        for place, curve in enumerate(self.decode):
            yield from Curve(points=curve.points).problems_at(f"{path}.decode[{place}]")
            if place and self.decode[place - 1].pieces >= curve.pieces:
                yield f"{path}.decode[{place}].pieces", str(curve.pieces), "ascending numbers of pieces"


class RoutineCost(Record, frozen=True, kw_only=True):
    """A measured collective of torch.distributed: time over the bytes that each rank brings along, at as many ranks."""

    routine: Routine
    scope: Scope
    ranks: Positive
    curve: Curve


class CompressionCosts(Document, frozen=True, kw_only=True, tag_field="kind", tag="compression-costs"):
    """Costs of compressors on one kind of machine, and of collectives where they were measured as well."""

    version: Positive
    name: Name
    """The machine."""
    compressors: tuple[CompressorCost, ...]
    routines: tuple[RoutineCost, ...] = ()
    issue: Curve | None = None
    """What a collective takes of the device, over the bytes that a rank sends: CPU time of ranks without a core to
    spare. `routines` are without it."""
    pack: Curve | None = None
    """Copy of gradients into one buffer, over their elements."""
    sources: dict[str, str] = {}
    """Where each number comes from, by path prefix without `$.`."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        yield from problems_of(self.compressors, self.routines, {"pack": self.pack, "issue": self.issue}, "$")


def problems_of(
    compressors: Sequence[CompressorCost],
    routines: Sequence[RoutineCost],
    others: Mapping[str, Curve | None],
    prefix: str,
) -> Iterator[tuple[str, str, str]]:
    """(path, found, expected) for curves that are none, and for what comes twice."""
    seen: set[tuple[str, str]] = set()
    for place, cost in enumerate(compressors):
        path = f"{prefix}.compressors[{place}]"
        yield from cost.problems_at(path)
        if (cost.name, cost.place) in seen:
            yield path, f"{cost.name} on the {cost.place} again", "each compressor once a place"
        seen.add((cost.name, cost.place))
    for place, routine in enumerate(routines):
        yield from routine.curve.problems_at(f"{prefix}.routines[{place}].curve")
    for name, curve in others.items():
        if curve is not None:
            yield from curve.problems_at(f"{prefix}.{name}")
