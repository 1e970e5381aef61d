"""The job: one file that names model, hardware and what to plan."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.scalars import Count, Document, Name, Positive, PositiveAmount, Record

VERSION = 1


class MemoryJob(Record, frozen=True, kw_only=True):
    budget: Name
    """As on the command line: `8GiB`, or `0.6x` of plain PyTorch's peak."""


class CollectiveJob(Record, frozen=True, kw_only=True):
    sketch: Name
    """A shipped sketch or a path beside the job file."""
    buckets: Positive = 1
    """Into how many messages the gradients are packed, in the order they become ready."""


class RunJob(Record, frozen=True, kw_only=True):
    steps: Positive = 3
    learning_rate: PositiveAmount = 0.01
    seed: Count = 0


class Job(Document, frozen=True, kw_only=True, tag_field="kind", tag="job"):
    """Data-parallel training on every rank of `hardware`; `model` is importable from the folder of the job file."""

    version: Positive
    name: Name
    model: Name
    hardware: Name
    nodes: Positive | None = None
    memory: MemoryJob
    collective: CollectiveJob
    run: RunJob = RunJob()

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yield (path, found, expected) for what can be seen wrong in the file alone."""
        if ":" not in self.model:
            yield "$.model", repr(self.model), "MODULE:FUNCTION"
