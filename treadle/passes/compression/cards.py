"""The headline facts of a compression plan."""

from __future__ import annotations

from treadle.passes.compression.words import compressed, reason
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.report.cards import CHECKED, bound_card, time_card
from treadle.report.page import Card


def compression_cards(plan: Plan[CompressionDecisions]) -> tuple[Card, ...]:
    """Predicted time against gradients as they are, what is compressed, the bound and the check."""
    decisions = plan.decisions
    found, gradients = compressed(decisions), len(decisions.problem.gradients)
    peer = "every gradient as it is and alone"
    what = Card("compressed", "nothing", None, reason(plan))
    if found.groups:
        named = ", ".join(f"{name} for {many(count, 'group')}" for name, count in sorted(found.groups.items()))
        what = Card("compressed", f"{found.gradients} of {many(gradients, 'gradient')}", None, named)
    return (
        time_card("iteration time", decisions.time_ns, decisions.uncompressed_ns, peer, "predicted"),
        what,
        bound_card(plan),
        Card("sums", "checked, not run", None, CHECKED.format("every rank ends with the sum of all")),
    )
