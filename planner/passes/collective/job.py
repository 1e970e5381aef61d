"""The section of a job file on the exchange of gradients."""

from __future__ import annotations

from treadle.planner.documents.job import ExchangeSection
from treadle.planner.documents.scalars import Name, Positive


class CollectiveJob(ExchangeSection, frozen=True, kw_only=True):
    sketch: Name
    """A shipped sketch or a path next to the job file."""
    buckets: Positive = 1
    """Number of messages into which the gradients are packed, in the order they become ready."""
