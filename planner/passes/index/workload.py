"""A workload of an index that is drawn: a family of keys, how many are loaded, and how many operations follow."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.scalars import Document, Name, Positive
from treadle.planner.passes.index.problem import DrawnWorkload, Finding

VERSION = 1


class IndexWorkload(Document, frozen=True, kw_only=True, tag_field="kind", tag="index-workload"):
    version: Positive
    name: Name
    draw: DrawnWorkload

    def problems(self) -> Iterator[Finding]:
        yield from self.draw.problems("$.draw")
