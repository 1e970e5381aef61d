"""The headline facts of a sparse plan."""

from __future__ import annotations

from treadle.passes.sparse.words import sent_bytes
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.schemes import DENSE
from treadle.report.cards import bound_card, time_card
from treadle.report.page import Card


def sparse_cards(plan: Plan[SparseDecisions]) -> tuple[Card, ...]:
    """Predicted time against dense gradients, what stays sparse, bytes between nodes, and the bound."""
    decisions = plan.decisions
    return (
        time_card("exchange time", decisions.time_ns, decisions.dense_ns, "every gradient dense", "predicted"),
        schemes_card(decisions),
        bytes_card(decisions),
        bound_card(plan),
    )


def schemes_card(decisions: SparseDecisions) -> Card:
    """How many gradients are exchanged as sparse ones, and by which schemes."""
    used: dict[str, int] = {}
    for plan in decisions.gradients:
        used[plan.scheme] = used.get(plan.scheme, 0) + 1
    dense = used.get(DENSE.name, 0)
    value = f"{len(decisions.gradients) - dense} of {many(len(decisions.gradients), 'gradient')}"
    return Card("exchanged as sparse", value, None, ", ".join(f"{count} by {name}" for name, count in used.items()))


def bytes_card(decisions: SparseDecisions) -> Card:
    """Bytes that the busiest rank sends or receives between nodes, against those of dense gradients."""
    mine, dense = sent_bytes(decisions), sent_bytes(decisions, DENSE.name)
    note = f"predicted for the busiest rank: {format_bytes(mine)}, every gradient dense {format_bytes(dense)}"
    if not dense:
        return Card("bytes between nodes", "none", None, note)
    return Card("bytes between nodes", f"{mine / dense:.1%} of dense", True if mine <= dense else None, note)
