"""How sparse gradients are: which units of each are not zero on one participant, and in sums over several.

A unit is what an index stands for: an element, or a row of an embedding with all its elements. Counts are means over
iterations and over sets of participants, rounded to whole units.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from treadle.planner.documents.scalars import Count, Document, Name, Positive, Record

VERSION = 1
Unit = Literal["row", "element"]
Form = Literal["coo", "dense"]
"""How the framework hands a gradient over: as indices with values, or as a dense tensor of which much is zero."""
Share = Annotated[float, Meta(ge=0, le=1)]
MAX_UNITS = 2**31 - 1
"""Indices are sent as 32 bits."""
MAX_ELEMENTS = 2**42
"""16 TiB of a gradient: times of exchanging more may not be whole numbers that a float holds."""


def problems_of_units(unit: Unit, units: int, width: int, path: str) -> Iterator[tuple[str, str, str]]:
    """(path, found, expected) for numbers of units, and of elements in one, that no gradient has."""
    if units > MAX_UNITS:
        yield f"{path}.units", str(units), f"at most {MAX_UNITS}"
    if unit == "element" and width != 1:
        yield f"{path}.width", str(width), "1, the width of an element"
    if units * width > MAX_ELEMENTS:
        yield f"{path}.width", f"{units} units of {width}", f"at most {MAX_ELEMENTS} elements"


class UnionCount(Record, frozen=True, kw_only=True):
    """Units that are not zero in the sum of as many `participants`: the mean, and the most that was seen."""

    participants: Positive
    mean: Count
    most: Count


class FullestPart(Record, frozen=True, kw_only=True):
    """Non-zero units in the fullest of `parts` even ranges, in the sum of as many participants."""

    parts: Positive
    participants: Positive
    mean: Count


class FullestBlocks(Record, frozen=True, kw_only=True):
    """As `FullestPart`, but blocks of `block` units of which any is not zero."""

    block: Positive
    parts: Positive
    participants: Positive
    mean: Count


class SharedUnits(Record, frozen=True, kw_only=True):
    """Units that two participants have in common, as a share of the smaller set, over pairs."""

    mean: Share
    deviation: Share = 0.0
    counts: tuple[Count, ...] = ()
    """Pairs by their share: even bins from 0 to 1."""


class UnitPlaces(Record, frozen=True, kw_only=True):
    """Non-zero units in each of as many even ranges as `counts` has, in the sum of as many participants."""

    participants: Positive
    counts: tuple[Count, ...]


class TensorSparsity(Record, frozen=True, kw_only=True):
    """One gradient of `units` units of `width` elements each, as `sets` index sets show it."""

    name: Name
    form: Form
    unit: Unit
    units: Positive
    width: Positive
    sets: Positive
    occurrences: Count
    """Entries that the framework hands over: those of a COO gradient before equal indices are added up; of a dense one
    the non-zero units."""
    unions: tuple[UnionCount, ...]
    """By participants, ascending, from 1."""
    shared: SharedUnits | None = None
    """None without two index sets that are not empty."""
    fullest: tuple[FullestPart, ...] = ()
    blocks: tuple[FullestBlocks, ...] = ()
    places: tuple[UnitPlaces, ...] = ()
    """Where in the gradient its non-zero units are: those of some index sets, and of sums."""

    def problems_at(self, path: str) -> Iterator[tuple[str, str, str]]:
        """(path, found, expected) for counts that no index sets have."""
        yield from problems_of_units(self.unit, self.units, self.width, path)
        for place, part in enumerate(self.fullest):
            if part.mean > -(-self.units // part.parts):
                yield f"{path}.fullest[{place}].mean", str(part.mean), f"at most {-(-self.units // part.parts)} units"
        if not self.unions or self.unions[0].participants != 1:
            yield f"{path}.unions", "none of one participant", "that first"
        for place, union in enumerate(self.unions):
            at = f"{path}.unions[{place}]"
            if not union.mean <= union.most <= self.units:
                found = f"a mean of {union.mean}, at most {union.most}"
                yield at, found, f"a mean, and at least that, of {self.units} units"
            if not place:
                continue
            before = self.unions[place - 1]
            if before.participants >= union.participants:
                yield f"{at}.participants", str(union.participants), f"more than {before.participants}"
            elif not before.mean <= union.mean <= -(-before.mean * union.participants // before.participants) + 1:
                most = -(-before.mean * union.participants // before.participants)
                yield f"{at}.mean", str(union.mean), f"between {before.mean} and {most}"


class Sparsity(Document, frozen=True, kw_only=True, tag_field="kind", tag="sparsity"):
    """The sparse gradients of one model, as `ranks` ranks recorded them over `steps` steps."""

    version: Positive
    name: Name
    ranks: Positive
    steps: Positive
    tensors: tuple[TensorSparsity, ...]
    sources: dict[str, str] = {}
    """Where the numbers come from, by path prefix without `$.`."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if not self.tensors:
            yield "$.tensors", "none", "at least one sparse gradient"
        seen: set[str] = set()
        for place, tensor in enumerate(self.tensors):
            path = f"$.tensors[{place}]"
            if tensor.name in seen:
                yield f"{path}.name", f"second {tensor.name!r}", "names that occur once"
            seen.add(tensor.name)
            yield from tensor.problems_at(path)
