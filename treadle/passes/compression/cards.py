"""The headline facts of a compression plan."""

from __future__ import annotations

from treadle.passes.compression.words import compressed, compressors_of, reason
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.report.cards import CHECKED, bound_card, time_card
from treadle.report.page import Card


def compression_cards(plan: Plan[CompressionDecisions]) -> tuple[Card, ...]:
    """Predicted time against gradients as they are, what is compressed, the bound and the check."""
    decisions = plan.decisions
    peer = "every gradient as it is and alone"
    return (
        time_card("iteration time", decisions.time_ns, decisions.uncompressed_ns, peer, "predicted"),
        compressed_card(plan),
        bound_card(plan),
        Card("sums", "checked, not run", None, CHECKED.format("every rank ends with the sum of all")),
    )


def compressed_card(plan: Plan[CompressionDecisions]) -> Card:
    """How many gradients are compressed and by what, or why none is."""
    found, gradients = compressed(plan.decisions), len(plan.decisions.problem.gradients)
    if not found.groups:
        return Card("compressed", "nothing", None, reason(plan))
    return Card("compressed", f"{found.gradients} of {many(gradients, 'gradient')}", None, compressors_of(found.groups))
