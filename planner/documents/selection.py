"""The selection: which plan of a collective serves which sizes, in a table to read and diff.

Bytes are the input buffer of one rank, both ends of a range included; `from` and `to` follow each other without holes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from treadle.planner.documents.collective import Collective
from treadle.planner.documents.nccl_costs import Algorithm
from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.documents.scalars import Amount, Count, Document, Instances, Name, Positive, Record

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


class NcclRange(Record, frozen=True, kw_only=True):
    """NCCL's own best for one range of sizes, by its model with the factors of the profile (`planner.machine.nccl`).

    Pairs are for both ends of the range; NCCL's best is the same between them, and so is the entry in use.
    """

    min_bytes: Count
    max_bytes: Count
    algorithm: Algorithm
    protocol: Literal["Simple", "LL", "LL128"]
    channels: tuple[Positive, Positive]
    time_us: tuple[Amount, Amount]
    plan_us: tuple[Amount, Amount] | None = None
    """Simulated time of the program in use; absent outside the entries, and where programs are not simulated."""

    @property
    def gains(self) -> tuple[float, ...]:
        """NCCL's time over that of the program, at both ends; nothing where the program's time is absent."""
        ours = self.plan_us or ()
        return tuple(nccl / plan if plan else 1.0 for nccl, plan in zip(self.time_us, ours, strict=False))


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
    rivals_fitted: bool = False
    """Whether NCCL's model has factors that were fitted to measured times."""
    rivals: tuple[NcclRange, ...] = ()
    """Ranges from 0 on without holes, beyond the entries too; none where NCCL has no such collective, or no GPUs."""

    @property
    def name(self) -> str:
        return f"{self.collective} of {self.ranks} ranks"

    @property
    def compared(self) -> tuple[NcclRange, ...]:
        """The rivals whose ranges our programs were simulated for."""
        return tuple(rival for rival in self.rivals if rival.plan_us is not None)

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
        yield from _holes("entries", [(entry.min_bytes, entry.max_bytes) for entry in self.entries])
        if self.rivals and self.rivals[0].min_bytes:
            yield "$.rivals[0].min_bytes", str(self.rivals[0].min_bytes), "0"
        for index, rival in enumerate(self.rivals):
            if rival.max_bytes < rival.min_bytes:
                yield f"$.rivals[{index}].max_bytes", str(rival.max_bytes), f"at least {rival.min_bytes}"
        yield from _holes("rivals", [(rival.min_bytes, rival.max_bytes) for rival in self.rivals])


def _holes(field: str, ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[str, str, str]]:
    for index, ((_, last), (first, _)) in enumerate(pairwise(ranges), 1):
        if first != last + 1:
            yield f"$.{field}[{index}].min_bytes", str(first), f"{last + 1}, right after the range before it"


def other_methods(selection: Selection, plans: Mapping[str, Plan]) -> Iterator[str]:
    """Entries whose method is not the one that their plan, by file name, says it was made by."""
    for index, entry in enumerate(selection.entries):
        made_by = plans[entry.plan.file].provenance.known.chosen or entry.method
        if made_by != entry.method:
            yield f"entries[{index}]: method {entry.method}, but {entry.plan.file} was made by {made_by}"
