"""The section of a job file on memory."""

from __future__ import annotations

from treadle.planner.documents.scalars import Name, Record


class MemoryJob(Record, frozen=True, kw_only=True):
    budget: Name
    """As on the command line: `8GiB`, or `0.6x` of plain PyTorch's peak."""
