"""The headline facts of a memory plan: whether it fits, what it saves, what it costs, what was verified."""

from __future__ import annotations

from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.plain import plain_peak, plain_time
from treadle.report.cards import CHECKED, fits_card, saved_card, time_card
from treadle.report.page import Card

SAVED = "memory saved"
KEPT = "the step that keeps everything"


def memory_cards(decisions: MemoryDecisions, peak: int | None = None) -> tuple[Card, ...]:
    """Predicted; against plain PyTorch, or where that is not known against the step that keeps everything. peak: bytes
    at the peak of the whole step, by default that of the passes, which the plan decides."""
    problem, in_passes = decisions.problem, decisions.exact_peak_bytes
    whole, plain = in_passes if peak is None else peak, plain_peak(problem)
    known = "predicted" if whole == in_passes else "predicted for forward and backward"
    return (
        fits_card(whole, problem.budget_bytes, "predicted peak"),
        saved_card(
            SAVED, in_passes, plain or decisions.store_all_peak_bytes, "plain PyTorch" if plain else KEPT, known
        ),
        step_time_card(decisions),
        Card("same numbers", "checked, not run", None, CHECKED.format("every operator reads what the model computes")),
    )


def step_time_card(decisions: MemoryDecisions) -> Card:
    """The predicted time of the step against that of plain PyTorch's operators."""
    plain = plain_time(decisions.problem)
    if not (plain or decisions.store_all_ns):
        return Card(
            "step time", format_time(decisions.objective_ns), None, "predicted; that of plain PyTorch is unknown"
        )
    peer = "plain PyTorch's operators" if plain else KEPT
    return time_card("step time", decisions.objective_ns, plain or decisions.store_all_ns, peer, "predicted")


def measured_cards(peak: int, budget: int, plain: int) -> tuple[Card, ...]:
    """The same of a run: bytes at the peak of any rank, of the budget, and at that of plain PyTorch."""
    return (
        fits_card(peak, budget, "measured peak of any rank"),
        saved_card(SAVED, peak, plain, "plain PyTorch", "measured"),
    )
