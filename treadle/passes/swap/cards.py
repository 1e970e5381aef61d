"""The headline facts of a swap plan."""

from __future__ import annotations

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes
from treadle.planner.passes.swap.decisions import SwapDecisions
from treadle.planner.passes.swap.planning import footprint
from treadle.report.cards import CHECKED, fits_card, saved_card, time_card
from treadle.report.page import Card


def swap_cards(plan: Plan[SwapDecisions]) -> tuple[Card, ...]:
    """Predicted, against the iteration without any copy, which needs all its memory on the device."""
    decisions = plan.decisions
    problem = decisions.problem
    fits = fits_card(decisions.peak_bytes, problem.arena_bytes, "predicted peak of tensors")
    device = f"{fits.note} for tensors on a device of {format_bytes(problem.machine.memory_bytes)}"
    peer = "the same iteration without any copy"
    same = CHECKED.format("no copy overwrites or loses data, in any order in which the streams may run")
    used = decisions.peak_bytes + problem.scratch_bytes + problem.reserve_bytes
    return (
        fits._replace(note=device),
        saved_card("memory saved", used, footprint(problem), "without any copy", "predicted"),
        time_card("step time", decisions.time_ns, problem.ideal_ns, peer, "predicted"),
        Card("same numbers", "checked, not run", None, same),
    )
