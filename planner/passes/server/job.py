"""The section of a job file on a parameter server."""

from __future__ import annotations

from treadle.planner.documents.job import ExchangeSection
from treadle.planner.documents.scalars import Name


class ServerJob(ExchangeSection, frozen=True, kw_only=True):
    """A server gives the mean gradients back to all ranks; it is a process of its own next to rank 0."""

    parts: Name | None = None
    """What the machine of the server carries: shipped parts or a file next to the job; None for what the hardware
    profile says."""
