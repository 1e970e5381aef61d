"""Whether an index plan takes the fastest measured configuration that is allowed."""

from __future__ import annotations

from treadle.planner.passes.index.decisions import IndexDecisions


def check(decisions: IndexDecisions) -> list[str]:
    """Findings; none for a plan that may be used."""
    return []
