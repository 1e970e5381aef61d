"""The job: one file that names model, hardware and what to plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar, get_args

from msgspec.structs import fields

from treadle.planner.documents.scalars import Count, Document, Name, Positive, PositiveAmount, Record

VERSION = 1
S = TypeVar("S", bound=Record)


class ExchangeSection(Record, frozen=True, kw_only=True):
    """Base of the section of a pass whose part averages the gradients over the ranks: a job has one such section."""

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path within the section, found, expected) for what its types do not exclude."""
        return iter(())


class RunJob(Record, frozen=True, kw_only=True):
    steps: Positive = 3
    learning_rate: PositiveAmount = 0.01
    seed: Count = 0


class Job(Document, frozen=True, kw_only=True, tag_field="kind", tag="job"):
    """Data-parallel training on every rank of `hardware`; `model` is importable from the folder of the job file.

    A loaded one also has the section of each pass that has a part in jobs, under its name.
    """

    version: Positive
    name: Name
    model: Name
    hardware: Name
    nodes: Positive | None = None
    run: RunJob = RunJob()
    measure_top: Count = 0
    """Where a pass can measure its choices on processes of this machine: how many of the best predicted it measures."""

    def section(self, kind: type[S]) -> S | None:
        """The section of the pass whose `job` is `kind`."""
        values = (getattr(self, name) for name in self.__struct_fields__)
        return next((value for value in values if isinstance(value, kind)), None)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for what is wrong in the file itself."""
        if ":" not in self.model:
            yield "$.model", repr(self.model), "MODULE:FUNCTION"
        known = sorted(field.name for field in fields(self) if any(map(_exchanges, get_args(field.type))))
        sections = {name: section for name in known if (section := getattr(self, name)) is not None}
        if known and not sections:
            yield "$", "no exchange of gradients", f"one of the sections {', '.join(known)}"
        for name in list(sections)[1:]:
            yield (
                f"$.{name}",
                f"it next to {next(iter(sections))}",
                "one exchange of gradients: remove one of these sections",
            )
        for name, section in sections.items():
            for path, found, expected in section.problems():
                yield path.replace("$", f"$.{name}", 1), found, expected


def _exchanges(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, ExchangeSection)
