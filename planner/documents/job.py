"""The job: one file that names model, hardware and what to plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from treadle.planner.documents.scalars import Count, Document, Name, Positive, PositiveAmount, Record

VERSION = 1
S = TypeVar("S", bound=Record)


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

    def section(self, kind: type[S]) -> S | None:
        """The section of the pass whose `job` is `kind`."""
        values = (getattr(self, name) for name in self.__struct_fields__)
        return next((value for value in values if isinstance(value, kind)), None)

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for what is wrong in the file itself."""
        if ":" not in self.model:
            yield "$.model", repr(self.model), "MODULE:FUNCTION"
