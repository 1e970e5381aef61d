"""The headline facts of a collective plan."""

from __future__ import annotations

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.collective.algorithm import CollectiveDecisions
from treadle.report.cards import CHECKED, bound_card, time_card
from treadle.report.page import Card

STOCK = ("ring", "double-tree", "nvls")
"""The algorithms of NCCL that `auto` also makes."""


def collective_cards(plan: Plan[CollectiveDecisions]) -> tuple[Card, ...]:
    """Predicted time, time against NCCL's algorithms where `auto` made them, the bound, and the check."""
    decisions, time_us = plan.decisions, plan.prediction.time_us
    speed = decisions.input_bytes / max(time_us * 1e3, 1)
    size = f"{format_bytes(decisions.input_bytes)} on each of {many(decisions.ranks, 'rank')}, {speed:.3g} GB/s"
    same = CHECKED.format("every rank ends with the result")
    return (
        Card("predicted time", format_time(time_us * 1e3), None, size),
        _against_stock(plan),
        bound_card(plan, " on links and ports"),
        Card("result", "checked, not run", None, same),
    )


def _against_stock(plan: Plan[CollectiveDecisions]) -> Card:
    known, label = plan.provenance.known, "time against stock"
    chosen = known.chosen or ""
    messages_us = {name: time / 1e3 for name, time in known.candidates_ns.items()}
    for times, how in ((known.candidates_us, "predicted"), (messages_us, "predicted, messages alone")):
        stock = {name: times[name] for name in STOCK if name in times}
        if stock and chosen in times:
            name = min(stock, key=lambda name: (stock[name], name))
            return time_card(label, times[chosen] * 1e3, stock[name] * 1e3, f"NCCL's {name} algorithm", how)
    return Card(
        label,
        "not compared",
        None,
        "Only --method auto also makes the ring, the double tree and the in-switch algorithm that NCCL has.",
    )
