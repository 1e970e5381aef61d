"""The headline facts of a tiling plan."""

from __future__ import annotations

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time, many
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.report.cards import bound_card, fits_card
from treadle.report.page import Card

CHECKED = "a checker that shares no code with the planner counted tiles, moves, memory and costs again"
MODELS = {"seed": "elements as the paper estimates them", "exact": "elements that are moved", "time": "predicted time"}


def tiling_cards(plan: Plan[TilingDecisions]) -> tuple[Card, ...]:
    """What is moved, memory, the bound and the check."""
    return (moved_card(plan.decisions), memory_card(plan.decisions), bound_card(plan), checked_card())


def moved_card(decisions: TilingDecisions) -> Card:
    """Bytes between workers, in how many moves, and in what they were weighed."""
    moves = sum(each.bytes > 0 for each in decisions.edges)
    value = format_bytes(decisions.moved_bytes) if decisions.moved_bytes else "nothing"
    note = f"predicted, not measured: {many(moves, 'move')}, {format_time(decisions.time_ns)} in all"
    return Card(
        "moved between workers", value, None, f"{note}; plans were compared by {MODELS[decisions.problem.model]}"
    )


def memory_card(decisions: TilingDecisions) -> Card:
    """The fullest worker, against what it may hold."""
    limit, held = decisions.problem.memory_bytes, decisions.memory_bytes
    if limit is not None:
        return fits_card(held, limit, "predicted: the fullest worker holds")
    note = "predicted for the fullest worker at its fullest moment; without a limit"
    if decisions.dup_bytes:
        note += f"; second copies take {format_bytes(decisions.dup_bytes)} in all"
    return Card("memory of a worker", format_bytes(held), None, note)


def checked_card() -> Card:
    """Nothing was run for a plan alone."""
    return Card("result", "checked, not run", None, CHECKED)
