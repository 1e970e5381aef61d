"""What the fusion pass decides: a schedule of a program, how each of its kernels runs, and what was turned down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import Meta

from treadle.planner.documents.scalars import Amount, Count, Decisions, Name, Positive, Record
from treadle.planner.passes.fusion.dims import PARTS

AS_WRITTEN = "as written: "
COMPUTATION_FUSED = "computation fused: "
"""Prefixes of the names of two rivals: the program as it is, and with only its computation fused."""
PEERS = (AS_WRITTEN, COMPUTATION_FUSED)
CLOSE = 1e-3
"""Relative difference of times below which the model does not distinguish them."""

Text = Annotated[str, Meta(min_length=1, max_length=1 << 20)]


class TransformCall(Record, frozen=True, kw_only=True):
    """One transformation and its arguments; all of them in order make the schedule from the program."""

    transform: Name
    arguments: dict[str, Any] = {}


class StageChoice(Record, frozen=True, kw_only=True):
    """One launch of the schedule, what it takes and how it runs. `members` are operations of the schedule."""

    name: Name
    kind: Name
    members: tuple[Name, ...]
    time_ns: Count
    """Time in isolation."""
    start_ns: Count
    end_ns: Count
    """Times in the schedule; a stage that overlaps may start before the previous one has ended, and waits for it."""
    algorithm: Name | None = None
    """A collective's: ring, all-pairs, hierarchical or tree."""
    protocol: Literal["Simple", "LL", "LL128"] | None = None
    channels: Positive | None = None
    overlaps: bool = False
    """Starts on what the stage before has finished, instead of after it."""
    own_ns: Count | None = None
    """The time of our own kernel in place of a library call; None for our own kernels."""


class Reason(Record, frozen=True, kw_only=True):
    """A transformation that was taken, or refused, on which operations, and why."""

    transform: Name
    on: tuple[Name, ...]
    why: Name
    code: Name | None = None
    """The condition that fails; None for what was taken."""
    witness: Name | None = None
    """The operation, operand or path that fails the condition; None for what was taken."""


class Rival(Record, frozen=True, kw_only=True):
    """Another schedule of the same program."""

    name: Text
    time_ns: Count
    schedule: Text


class FusionDecisions(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="fusion"):
    """`program` and `schedule` are program texts (docs/fusion.md): the same values, the latter cut into launches.

    `ranks` are those of one group. Volumes are elements that each rank sends, traffic the elements of tensors that
    it loads and stores, state the elements of the caller's tensors that it keeps.
    """

    program: Text
    schedule: Text
    extents: dict[str, Positive]
    parts: dict[str, tuple[Positive, ...]] = {}
    """Sizes of the tensors that together make up a dimension."""
    ranks: Positive
    groups: Positive = 1
    nodes: Positive
    """Nodes of the machine that it was priced on."""
    transforms: tuple[TransformCall, ...] = ()
    stages: tuple[StageChoice, ...]
    time_ns: Count
    volume: Amount
    volume_between_groups: Amount = 0.0
    traffic: Amount
    state: Amount
    library: bool = False
    """Whether products may be calls of a library, those of its rivals too."""
    considered: Positive
    """Schedules that were priced."""
    taken: tuple[Reason, ...] = ()
    refused: tuple[Reason, ...] = ()
    rivals: tuple[Rival, ...] = ()
    measured_ns: dict[Name, Count] = {}
    """Times of schedules that were measured, by name; the fastest of them was taken."""

    @property
    def own_ns(self) -> int:
        """Its time with our own kernels alone."""
        return self.time_ns + sum(each.own_ns - each.time_ns for each in self.stages if each.own_ns is not None)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for parts that do not add up and dimensions with reserved names."""
        for name, sizes in self.parts.items():
            whole = self.extents.get(name)
            if whole != sum(sizes):
                yield f"$.decisions.parts.{name}", f"sizes of {sum(sizes)} elements", f"extent {whole}"
        for name in self.extents:
            if name.endswith(PARTS):
                yield f"$.decisions.extents.{name}", repr(name), f"a name that does not end in {PARTS}"
