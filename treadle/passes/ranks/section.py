"""The section of the report on one order of hosts."""

from __future__ import annotations

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.ranks.decisions import RanksDecisions
from treadle.report.page import Section, Table, titled


def ranks_section(name: str, plan: Plan[RanksDecisions]) -> Section:
    """What the order costs next to others, and the order."""
    decisions = plan.decisions
    rows = (
        ("this order", format_time(decisions.cost_ns)),
        ("as handed out", format_time(decisions.original_ns)),
        ("median of random orders", format_time(decisions.median_ns)),
        ("worst found", format_time(decisions.worst_ns)),
    )
    return Section(titled("Order of hosts", name), "", (Table(("order", "cost"), rows, words=True),))
