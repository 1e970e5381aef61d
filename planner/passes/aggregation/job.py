"""The section of a job file on aggregation."""

from __future__ import annotations

from treadle.planner.documents.job import ExchangeSection
from treadle.planner.documents.scalars import Name


class AggregationJob(ExchangeSection, frozen=True, kw_only=True):
    """The gradients are averaged by allreduces whose masters a plan chooses for the hosts of a cost matrix, one host
    for each node of the job's hardware, in the same order."""

    costs: Name
    """The matrix: a file next to the job."""
