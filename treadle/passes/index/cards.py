"""The headline facts of an index plan."""

from __future__ import annotations

from treadle.passes.index.words import leaves_words, memory_words, second_words, times
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_time, many
from treadle.planner.passes.index.configurations import name_of_leaves
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.report.cards import bound_card
from treadle.report.page import Card

CHECKED = (
    "a checker that shares no code with the planner ranked the predictions, added up the windows and compared memory "
    "and times again; `treadle run` compares every answer"
)


def index_cards(plan: Plan[IndexDecisions]) -> tuple[Card, ...]:
    """Time of an operation, the chosen leaves, the bound and the check."""
    decisions = plan.decisions
    result = Card("result", "checked, not run", None, CHECKED)
    return (time_card(decisions), leaves_card(decisions), bound_card(plan), result)


def time_card(decisions: IndexDecisions) -> Card:
    """The time of one operation on average, and how far the prediction was off."""
    problem, time = decisions.problem, decisions.time_ns
    value = f"{time / problem.operations:.4g} ns"
    if decisions.bytes is None:
        return Card("an operation", value, None, "predicted, not measured")
    expected = decisions.candidate.predicted_ns
    known = f"{format_time(time)} measured for {many(problem.operations, 'operation')}"
    return Card(
        "an operation", value, None, f"{known}, {times(time, expected)} of the {format_time(round(expected))} predicted"
    )


def leaves_card(decisions: IndexDecisions) -> Card:
    """The name of the chosen configuration; what its numbers mean, its memory, and what the second best loses."""
    note = leaves_words(decisions.chosen).partition(": ")[2]
    if decisions.bytes is not None:
        note += f"; {memory_words(decisions.problem, decisions.bytes, decisions.over_memory)}"
    if decisions.second is not None:
        note += f"; second best: {second_words(decisions)}"
    return Card("leaves", name_of_leaves(decisions.chosen), None, note)
