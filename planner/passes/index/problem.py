"""A problem of choosing an index: a workload, what the evaluator predicts of each configuration, and what was measured.

Times are ns of all operations of the trace subset together, on one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from treadle.planner.documents.plan import InputRef
from treadle.planner.documents.scalars import Count, Document, Name, Positive, PositiveAmount, Record
from treadle.planner.passes.index.configurations import IndexConfiguration, name_of_leaves

VERSION = 1
Share = Annotated[float, Meta(ge=0, le=1)]
Family = Literal[
    "books", "osm", "fb", "uniform", "normal", "lognormal", "sequence", "bursts", "steps", "zipf", "exponential",
]  # fmt: skip


class WorkloadFiles(Record, frozen=True, kw_only=True, tag_field="from", tag="files"):
    """Bulk-loaded keys and a trace of operations, by the digest of their bytes."""

    keys: InputRef
    operations: InputRef


class DrawnWorkload(Record, frozen=True, kw_only=True, tag_field="from", tag="family"):
    """Keys of a synthetic family, and operations in a random order: inserts of keys that are not there yet, lookups of
    keys that are."""

    family: Family
    bulk: Count
    operations: Positive
    insert_share: Share
    skew: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """Lookups fall on the keys as in Zipf's law with this exponent; 0 for all alike."""
    seed: Count = 0


class Measurement(Record, frozen=True, kw_only=True):
    """One configuration on the real index."""

    load_ns: Count
    windows_ns: tuple[Positive, ...]
    """The trace subset in equal parts, the median run of several."""
    bytes: Positive
    """All of the index after the trace."""


class IndexCandidate(Record, frozen=True, kw_only=True):
    configuration: IndexConfiguration
    predicted_ns: PositiveAmount
    measured: Measurement | None = None


class IndexProblem(Document, frozen=True, kw_only=True, tag_field="kind", tag="index-problem"):
    """`candidates` in the order of the grid. The first `top` by prediction were measured, none where `top` is 0."""

    version: Positive
    name: Name
    workload: WorkloadFiles | DrawnWorkload
    bulk: Count
    """Keys that are loaded first."""
    lookups: Count
    inserts: Count
    deletes: Count = 0
    scans: Count = 0
    """Operations of the trace subset."""
    whole: Positive
    """Operations of the whole trace."""
    keys_at_end: Count
    """Keys that are there after the trace subset."""
    machine: Name
    """Where it was measured, or what the evaluator learned from."""
    model: Name
    """The evaluator."""
    candidates: tuple[IndexCandidate, ...]
    top: Count
    loop_ns: Count = 0
    """What reading the trace subset takes without an index."""
    max_memory_ratio: PositiveAmount | None = None
    """Most bytes of the index for each byte of its keys and payloads."""

    @property
    def operations(self) -> int:
        """Operations of the trace subset."""
        return self.lookups + self.inserts + self.deletes + self.scans

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if not self.candidates:
            yield "$.candidates", "none", "at least one"
        if not self.operations:
            yield "$.lookups", "no operation at all", "at least one operation"
        if self.operations > self.whole:
            yield "$.whole", str(self.whole), f"at least the {self.operations} operations of the subset"
        seen: dict[str, int] = {}
        for place, each in enumerate(self.candidates):
            name = name_of_leaves(each.configuration)
            if name in seen:
                yield f"$.candidates[{place}]", f"second {name}", "configurations that occur once"
            seen[name] = place
            if each.measured is not None and not each.measured.windows_ns:
                yield f"$.candidates[{place}].measured.windows_ns", "none", "at least one window"
