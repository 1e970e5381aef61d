"""The headline facts of a sparse plan."""

from __future__ import annotations

from treadle.passes.sparse.words import sent_bytes
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, many
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.schemes import DENSE
from treadle.report.cards import bound_card, time_card
from treadle.report.page import Card

CHECKED = "a checker that shares no code with the planner counted bytes and times of every scheme again"


def sparse_cards(plan: Plan[SparseDecisions]) -> tuple[Card, ...]:
    """Predicted time against dense gradients, what stays sparse with its bytes, the bound and the check."""
    decisions = plan.decisions
    return (
        time_card("exchange time", decisions.time_ns, decisions.dense_ns, "every gradient dense", "predicted"),
        schemes_card(decisions),
        bound_card(plan),
        Card("result", "checked, not run", None, CHECKED),
    )


def schemes_card(decisions: SparseDecisions) -> Card:
    """How many gradients are exchanged as sparse ones, by which schemes, and how many bytes the busiest rank then sends
    or receives between nodes."""
    used: dict[str, int] = {}
    for plan in decisions.gradients:
        used[plan.scheme] = used.get(plan.scheme, 0) + 1
    dense = used.get(DENSE.name, 0)
    value = f"{len(decisions.gradients) - dense} of {many(len(decisions.gradients), 'gradient')}"
    schemes = ", ".join(f"{count} by {name}" for name, count in used.items())
    sent = f"{format_bytes(sent_bytes(decisions))} of {format_bytes(sent_bytes(decisions, DENSE.name))} between nodes"
    return Card("exchanged as sparse", value, None, f"{schemes}; {sent}")
