"""A communication pattern: who holds which part before an irregular collective, and who must hold it after.

`counts` is for alltoallv, `pairs` for sendrecv, `chunks` for custom; docs/patterns.md shows each. The document says
nothing about machines: the plan is made for the hardware that it is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from msgspec import Struct

from treadle.planner.documents.collective import MAX_PLACES, Collective, Demand
from treadle.planner.documents.hardware import MAX_RANKS
from treadle.planner.documents.quantities import parse_bytes
from treadle.planner.documents.scalars import Count, Document, Name, Positive, Rank
from treadle.planner.errors import InputError

VERSION = 1


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a custom collective: ranks that hold it before, and ranks that must hold it after."""

    before: tuple[Rank, ...]
    after: tuple[Rank, ...]


class Pattern(Document, frozen=True, kw_only=True, tag_field="kind", tag="pattern"):
    """Exactly one of `counts`, `pairs` and `chunks`; all parts have the same size, which `unit` may fix."""

    version: Positive
    name: Name
    counts: tuple[tuple[Count, ...], ...] | None = None
    """counts[a][b]: how many parts rank a sends to rank b."""
    pairs: tuple[tuple[Rank, Rank], ...] | None = None
    """(a, b): rank a sends one part to rank b."""
    chunks: tuple[Part, ...] | None = None
    unit: Name | None = None
    """Size of one part, such as 4KiB; without it `--size` gives the bytes of the largest input."""

    @property
    def collective(self) -> Collective:
        return "alltoallv" if self.counts is not None else "sendrecv" if self.pairs is not None else "custom"

    @property
    def unit_bytes(self) -> int | None:
        """Bytes of one part. Raises InputError for a text that is no size."""
        return None if self.unit is None else parse_bytes(self.unit, where=f"pattern {self.name}: $.unit")

    @property
    def demands(self) -> tuple[Demand, ...]:
        """The parts in the order of their ids: by sender, then by receiver; those of custom as they stand."""
        if self.counts is not None:
            return tuple(
                Demand((src,), (dst,))
                for src, row in enumerate(self.counts)
                for dst, count in enumerate(row)
                for _ in range(count)
            )
        if self.pairs is not None:
            return tuple(Demand((src,), (dst,)) for src, dst in sorted(self.pairs))
        return tuple(Demand(tuple(sorted(part.before)), tuple(sorted(part.after))) for part in self.chunks or ())

    def input_bytes(self) -> int | None:
        """Bytes of the largest input of a rank, where `unit` says how large a part is."""
        unit = self.unit_bytes
        if unit is None:
            return None
        held: dict[int, int] = {}
        for demand in self.demands:
            for rank in demand.sources:
                held[rank] = held.get(rank, 0) + 1
        return unit * max(held.values())

    def require(self, collective: str, ranks: int, where: str) -> None:
        """Raise InputError where the pattern is of another collective or of another number of ranks."""
        if collective != self.collective:
            raise InputError(f"found a pattern for {self.collective}, expected one for {collective}", where=where)
        if self.counts is not None and len(self.counts) != ranks:
            raise InputError(f"found {len(self.counts)} rows for {ranks} ranks, expected one for each", where=where,
                             path="$.counts")  # fmt: skip
        most = max(chain.from_iterable((*demand.sources, *demand.targets) for demand in self.demands))
        if most >= ranks:
            raise InputError(f"found rank {most}, expected one below {ranks}", where=where, path=f"$.{self._field}")

    @property
    def _field(self) -> str:
        return {"alltoallv": "counts", "sendrecv": "pairs"}.get(self.collective, "chunks")

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for what can be seen wrong without the hardware."""
        given = [name for name in ("counts", "pairs", "chunks") if getattr(self, name) is not None]
        if len(given) != 1:
            yield "$", " and ".join(given) or "no parts", "exactly one of counts, pairs and chunks"
            return
        if self.unit is not None:
            try:
                size = parse_bytes(self.unit)
            except InputError:
                size = 0
            if size < 1:
                yield "$.unit", repr(self.unit), "a size of at least 1 byte such as 4KiB"
        yield from {"counts": self._of_counts, "pairs": self._of_pairs, "chunks": self._of_chunks}[given[0]]()

    def _of_counts(self) -> Iterator[tuple[str, str, str]]:
        rows = self.counts or ()
        if not 1 <= len(rows) <= MAX_RANKS:
            yield "$.counts", f"{len(rows)} rows", f"1 to {MAX_RANKS}, one for each rank"
            return
        for index, row in enumerate(rows):
            if len(row) != len(rows):
                yield f"$.counts[{index}]", f"{len(row)} counts", f"{len(rows)}, one for each rank"
                return
        total = sum(map(sum, rows))
        if not 1 <= total * len(rows) <= MAX_PLACES:
            yield "$.counts", f"{total} parts in all", f"1 to {MAX_PLACES // len(rows)}; take a larger unit"

    def _of_pairs(self) -> Iterator[tuple[str, str, str]]:
        pairs = self.pairs or ()
        if not 1 <= len(pairs) <= MAX_PLACES:
            yield "$.pairs", f"{len(pairs)} pairs", f"1 to {MAX_PLACES}"
        seen: set[tuple[int, int]] = set()
        for index, pair in enumerate(pairs):
            if max(pair) >= MAX_RANKS:
                yield f"$.pairs[{index}]", f"rank {max(pair)}", f"ranks below {MAX_RANKS}"
            if pair in seen:
                yield f"$.pairs[{index}]", f"{pair[0]} -> {pair[1]} a second time", "each pair once"
            seen.add(pair)

    def _of_chunks(self) -> Iterator[tuple[str, str, str]]:
        parts = self.chunks or ()
        if not 1 <= len(parts) <= MAX_PLACES:
            yield "$.chunks", f"{len(parts)} parts", f"1 to {MAX_PLACES}"
        for index, part in enumerate(parts):
            for name, ranks in (("before", part.before), ("after", part.after)):
                path = f"$.chunks[{index}].{name}"
                if not ranks:
                    yield path, "no rank", "at least one"
                elif max(ranks) >= MAX_RANKS:
                    yield path, f"rank {max(ranks)}", f"ranks below {MAX_RANKS}"
                elif len(set(ranks)) < len(ranks):
                    yield path, "a rank twice", "each rank once"
