"""A link on which gradients are exchanged, as problems state it."""

from __future__ import annotations

from treadle.planner.documents.scalars import Amount, Record


class GradientLink(Record, frozen=True, kw_only=True):
    """What a rank's link takes: alpha for a step of a routine, beta for a MiB. `alpha_us` is 0 in published models."""

    alpha_us: Amount = 0.0
    beta_us_per_MB: Amount
