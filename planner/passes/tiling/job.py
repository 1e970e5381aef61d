"""The section `tiling` of a job file."""

from __future__ import annotations

from treadle.planner.documents.scalars import Positive, Record


class TilingJob(Record, frozen=True, kw_only=True):
    """The mesh of workers over which the job's model is cut; its axes multiply to the job's ranks."""

    mesh: tuple[Positive, ...]
    memory_bytes: Positive | None = None
    """Most that one worker may hold."""
