"""The headline facts of a fusion plan."""

from __future__ import annotations

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.fusion.decisions import AS_WRITTEN, COMPUTATION_FUSED, FusionDecisions
from treadle.report.cards import bound_card, time_card
from treadle.report.page import Card


def fusion_cards(plan: Plan[FusionDecisions]) -> tuple[Card, ...]:
    """Predicted time against the program as written, and with only its computation fused; the bound; the check."""
    decisions = plan.decisions
    against = [
        time_card(f"time against {label}", decisions.time_ns, rival.time_ns, label, "predicted")
        for prefix, label in ((AS_WRITTEN, "the program as written"), (COMPUTATION_FUSED, "computation fused"))
        for rival in decisions.rivals
        if rival.name.startswith(prefix)
    ]
    same = "The reference interpreter gives the results of the program for the schedule."
    alone = Card("predicted time", format_time(decisions.time_ns), None, "other schedules were not priced")
    return (*(against or (alone,)), bound_card(plan), Card("same numbers", "checked, not run", None, same))
