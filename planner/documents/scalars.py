"""The constrained numbers and words that every document is made of, and how numbers are printed.

Bytes are printed in powers of 1024, times in the unit in which they are easily read. `quantities` reads what people
write.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct

from treadle.planner.documents.drawing import drawing_of


class Record(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of every part of a document: immutable, without unknown fields, absent fields stay absent."""


class Document(Record, frozen=True, kw_only=True, tag_field="kind"):
    """Base of every kind of document; a kind is a subclass with its tag, in a module that has its VERSION."""

    def _repr_html_(self) -> str | None:
        """What a notebook shows; None for kinds without a drawing."""
        return drawing_of(self)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for everything that the types alone do not exclude."""
        return iter(())


class Decisions(Record, frozen=True, kw_only=True, tag_field="pass"):
    """Base of what a pass decides; its tag is the name of the pass."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for everything that the types alone do not exclude."""
        return iter(())


Count = Annotated[int, Meta(ge=0, le=2**62)]
Positive = Annotated[int, Meta(ge=1, le=2**62)]
Rank = Annotated[int, Meta(ge=0, le=2**31)]
Amount = Annotated[float, Meta(ge=0, le=1e30)]
PositiveAmount = Annotated[float, Meta(gt=0, le=1e30)]
Instances = Annotated[int, Meta(ge=1, le=64)]
Name = Annotated[str, Meta(min_length=1, max_length=4096)]
Digest = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]

MEBIBYTE = 2**20


def format_bytes(count: int) -> str:
    """`count` bytes with a binary unit and three significant digits, as tables print it."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            return f"{count} B" if unit == "B" else f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} PiB"


def many(count: int, word: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def format_time(nanoseconds: float) -> str:
    """`nanoseconds` with up to six digits in ns, us, ms, or from ten seconds on s."""
    for below, size, unit in ((1e3, 1, "ns"), (1e6, 1e3, "us"), (1e10, 1e6, "ms")):
        if abs(nanoseconds) < below:
            return f"{nanoseconds / size:.6g} {unit}"
    return f"{nanoseconds / 1e9:.6g} s"
