"""The headline facts of an order of hosts."""

from __future__ import annotations

from treadle.passes.ranks.words import predicted
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.report.cards import bound_card, time_card
from treadle.report.page import Card

CHECKED = "a checker that shares no code with the planner priced the order, the original one and random ones again"


def ranks_cards(plan: Plan[RanksDecisions]) -> tuple[Card, ...]:
    """The cost against that of the hosts as handed out and of random orders, the bound and the check."""
    decisions = plan.decisions
    cost = time_card("cost of the order", decisions.cost_ns, decisions.original_ns, "as handed out", "by its model")
    time = f"{predicted(decisions)} is predicted to take {format_time(decisions.time_ns)}, not measured"
    return (
        cost._replace(note=f"{cost.note}; {time}"),
        random_card(decisions),
        bound_card(plan),
        Card("result", "checked, not run", None, CHECKED),
    )


def random_card(decisions: RanksDecisions) -> Card:
    """How many times as dear random orders are; the original one is such an order in a rented cluster."""
    cost = max(1, decisions.cost_ns)
    note = (
        f"median of random orders {format_time(decisions.median_ns)}, the worst order found "
        f"{format_time(decisions.worst_ns)} or {decisions.worst_ns / cost:.2f}x"
    )
    better = True if decisions.median_ns > decisions.cost_ns else None
    return Card("random orders cost", f"{decisions.median_ns / cost:.2f}x", better, note)
