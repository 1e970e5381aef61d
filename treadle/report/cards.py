"""The cards that passes share, and those of a plan of any pass, from its certificate."""

from __future__ import annotations

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.report.page import Card

CHECKED = "a checker that shares no code with the planner followed every step: {}"
"""What a checker followed, as the note of a card."""


def certificate_cards(plan: Plan) -> tuple[Card, ...]:
    """Predicted time, distance to the bound, and the check."""
    return (
        Card("predicted time", format_time(plan.prediction.time_us * 1e3), None, "not measured"),
        bound_card(plan),
        Card("result", "checked, not run", None, "a checker that shares no code with the planner accepted it"),
    )


def bound_card(plan: Plan, where: str = "") -> Card:
    """How far the plan is above the proven lower bound. where: of which part of the plan it is."""
    proof = plan.certificate
    above = proof.objective - proof.lower_bound
    value = "0%" if proof.optimal or not above else f"{proof.gap:.2%}" if proof.gap < 0.1 else f"{proof.gap:.0%}"
    note = (
        f"proven lower bound {format_time(proof.lower_bound)}{where}, this plan {format_time(proof.objective)}; the "
        "argument of the bound says for which plans it holds"
    )
    return Card("gap to the lower bound", value, True if proof.optimal else None, note)


def fits_card(peak: int, budget: int, what: str) -> Card:
    """Whether `peak` bytes are within `budget`, and by how much. what: how the peak is known."""
    note = f"{what} {format_bytes(peak)}, budget {format_bytes(budget)}"
    if peak > budget:
        return Card("fits", "does not fit", False, f"{note}: {format_bytes(peak - budget)} too much")
    left = budget - peak
    return Card("fits", f"by {format_bytes(left)}" if left else "exactly", True, note)


def saved_card(label: str, peak: int, plain: int, peer: str, known: str) -> Card:
    """Bytes and share saved against `plain` of `peer`. known: measured or predicted."""
    saved = plain - peak
    share = f"{abs(saved) / plain:.0%}" if plain else "0%"
    note = f"{known}: peak {format_bytes(peak)}, {peer} {format_bytes(plain)}"
    if saved < 0:
        return Card(label, f"none: {format_bytes(-saved)} more ({share})", False, note)
    return Card(label, f"{format_bytes(saved)} ({share})", True if saved else None, note)


def time_card(label: str, time_ns: float, peer_ns: float, peer: str, known: str) -> Card:
    """A time against that of `peer`, better or worse. known: measured or predicted."""
    more = round(time_ns / peer_ns - 1, 4) if peer_ns else 0.0
    value = "the same" if abs(more) < 0.0005 else f"{abs(more):.1%} {'longer' if more > 0 else 'shorter'}"
    note = f"{known}: {format_time(round(time_ns))}, {peer} {format_time(round(peer_ns))}"
    return Card(label, value, True if more < 0.0005 else None, note)
