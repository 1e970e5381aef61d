"""The section of a job file on sparse gradients."""

from __future__ import annotations

from treadle.planner.documents.job import ExchangeSection
from treadle.planner.documents.scalars import Name

OTHERS = "all other gradients"
"""The gradients of a job that are of no embedding, in one message: a gradient of the plan with this name."""


class SparseJob(ExchangeSection, frozen=True, kw_only=True):
    """The gradients of embeddings are exchanged as a plan says that is made for the batches of the job, all others
    together as one dense gradient of it."""

    costs: Name | None = None
    """Shipped costs of the work on sparse gradients, or a file next to the job; None for those of the kind of
    machine."""
