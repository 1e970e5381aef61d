"""The selection: which plan of a collective serves which sizes, in a table to read and diff.

Bytes are the input buffer of one rank, both ends of a range included; `from` and `to` follow each other without holes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Literal

from treadle.planner.documents.collective import Collective
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import Amount, Document, Instances, Name, Positive, Record

VERSION = 1
FILE_NAME = "selection.json"


class Entry(Record, frozen=True, kw_only=True):
    """One range of sizes. `plan` is a file in the folder of the selection; `protocol` and `instances` override its own.

    `predicted_us` and `bound_us` are the plan's time and its lower bound at both ends of the range.
    """

    min_bytes: Positive
    max_bytes: Positive
    plan: InputRef
    method: Name
    """Its name on the command line; the plan's provenance says more."""
    protocol: Literal["Simple", "LL", "LL128"]
    instances: Instances
    predicted_us: tuple[Amount, Amount]
    bound_us: tuple[Amount, Amount]
    simulated_us: dict[str, tuple[Amount | None, Amount | None]] = {}
    """Simulated time of the generated program at both ends, by protocol and instances (`LL x 4`); null if not tried."""


class Selection(Document, frozen=True, kw_only=True, tag_field="kind", tag="selection"):
    """`tolerance`: how much longer than the best plan found an entry may take at a size that was tried."""

    version: Positive
    collective: Collective
    ranks: Positive
    nodes: Positive
    tolerance: Amount
    sizes: tuple[Positive, ...]
    """Those that were tried, ascending."""
    inputs: dict[str, InputRef]
    entries: tuple[Entry, ...]

    @property
    def name(self) -> str:
        return f"{self.collective} of {self.ranks} ranks"

    def at(self, input_bytes: int) -> Entry | None:
        """The entry for an input buffer of `input_bytes`, None outside all ranges."""
        return next((entry for entry in self.entries if entry.min_bytes <= input_bytes <= entry.max_bytes), None)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for ranges that are not in order, overlap, or leave holes."""
        if not self.entries:
            yield "$.entries", "none", "at least one"
        if any(a >= b for a, b in pairwise(self.sizes)) or not self.sizes:
            yield "$.sizes", "no ascending sizes", "at least one size, each larger than the one before"
        for index, entry in enumerate(self.entries):
            if entry.max_bytes < entry.min_bytes:
                yield f"$.entries[{index}].max_bytes", str(entry.max_bytes), f"at least {entry.min_bytes}"
            if "/" in entry.plan.file or entry.plan.file in ("", ".", ".."):
                yield (
                    f"$.entries[{index}].plan.file",
                    repr(entry.plan.file),
                    "the name of a file in the folder of the selection",
                )
            for end, (bound, time) in enumerate(zip(entry.bound_us, entry.predicted_us, strict=True)):
                if bound > time:
                    path = f"$.entries[{index}].bound_us[{end}]"
                    yield path, f"{bound:g}", f"at most {time:g}, the time that is predicted"
        for index, (one, other) in enumerate(pairwise(self.entries), 1):
            if other.min_bytes != one.max_bytes + 1:
                yield (
                    f"$.entries[{index}].min_bytes",
                    str(other.min_bytes),
                    f"{one.max_bytes + 1}, right after the range before it",
                )


def other_methods(selection: Selection, plans: Mapping[str, Plan]) -> Iterator[str]:
    """Entries whose method is not the one that their plan, by file name, says it was made by."""
    for index, entry in enumerate(selection.entries):
        made_by = plans[entry.plan.file].provenance.known.chosen or entry.method
        if made_by != entry.method:
            yield f"entries[{index}]: method {entry.method}, but {entry.plan.file} was made by {made_by}"
