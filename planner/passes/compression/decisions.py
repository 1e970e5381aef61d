"""What the compression pass decides: consecutive groups of gradients, and what is done with each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from treadle.planner.documents.scalars import Count, Decisions, Name, Record
from treadle.planner.errors import InputError
from treadle.planner.machine.compressors import ALGORITHMS, CompressionAlgorithm
from treadle.planner.passes.compression.problem import CompressionProblem

StepText = Annotated[
    str,
    Meta(
        pattern="^((compress|decompress)@(device|host)"
        "|(allreduce|reduce-scatter|allgather|alltoall|reduce|broadcast|gather|planned)@(flat|intra|inter))$(?!\\n)"
    ),
]
"""One step: an encoding or decoding and its place, or a collective and its scope."""


class GradientGroup(Record, frozen=True, kw_only=True):
    """Gradients `first` to `last`, in one buffer; `steps` are words such as `compress@device` and `allgather@inter`.

    `compressor` is None for a group that goes as it is.
    """

    first: Count
    last: Count
    compressor: Name | None = None
    steps: tuple[StepText, ...]


Groups = tuple[GradientGroup, ...]


class Sent(Record, frozen=True, kw_only=True, array_like=True):
    """Step `step` of group `group`, which is a collective: all ranks issue them in this order."""

    group: Count
    step: Count


class CompressionRival(Record, frozen=True, kw_only=True):
    """Other groups for the same problem, which the plan is compared with."""

    name: Name
    groups: Groups
    time_ns: Count
    cut: bool = False
    """A limit or Ctrl-C ended its method early."""


class CompressionDecisions(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="compression"):
    """`groups` cover the gradients of `problem` in their order. Times are in ns."""

    problem: CompressionProblem
    groups: Groups
    order: tuple[Sent, ...]
    """Every collective, by the time at which it starts."""
    time_ns: Count
    """One iteration."""
    uncompressed_ns: Count
    """The same with every gradient sent as it is and alone, by the first uncompressed option."""
    sent_bytes: Count
    """The most that a rank sends to others in an iteration: that of the busiest one in each step, added up."""
    rivals: tuple[CompressionRival, ...] = ()
    """By other methods, everything compressed and nothing among them; none where a single rank exchanges nothing."""

    @property
    def divisions(self) -> Iterator[tuple[str, Groups]]:
        """The groups of the plan and of its rivals, by their path."""
        yield "$.decisions.groups", self.groups
        for place, rival in enumerate(self.rivals):
            yield f"$.decisions.rivals[{place}].groups", rival.groups

    @property
    def algorithms(self) -> dict[str, CompressionAlgorithm | None]:
        """The algorithms of the compressors that groups have, by name; None for those of a problem written by hand
        which treadle does not have."""
        names = sorted({group.compressor for group in self.groups if group.compressor is not None})
        return {name: ALGORITHMS.get(name.partition(":")[0]) for name in names}

    def require_algorithms(self, where: str, *others: str) -> None:
        """Raises InputError that names the first compressor which is neither treadle's nor of `others`."""
        if missing := next(
            (name for name, each in self.algorithms.items() if each is None and name not in others), None
        ):
            expected = f"one of {', '.join(ALGORITHMS)}: a plan with others can be simulated, not run"
            raise InputError(f"found compressor {missing!r}, expected {expected}", where=where)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        for path, found, expected in self.problem.problems():
            yield path.replace("$", "$.decisions.problem", 1), found, expected
        gradients, known = len(self.problem.gradients), {None, *self.problem.names}
        for path, groups in self.divisions:
            for place, group in enumerate(groups):
                if not group.first <= group.last < gradients:
                    found = f"gradients {group.first} to {group.last}"
                    yield f"{path}[{place}]", found, f"a range below {gradients}"
                if group.compressor not in known:
                    expected = f"one of the problem: {', '.join(self.problem.names)}"
                    yield f"{path}[{place}].compressor", repr(group.compressor), expected
        for place, sent in enumerate(self.order):
            if sent.group >= len(self.groups) or sent.step >= len(self.groups[sent.group].steps):
                yield f"$.decisions.order[{place}]", f"step {sent.step} of group {sent.group}", "a step of a group"
