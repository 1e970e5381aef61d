"""What was done for a form of call, in one line."""

from __future__ import annotations

from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import format_bytes, format_time
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.plain import plain_peak, plain_time


def line_of(plan: Plan[MemoryDecisions]) -> str:
    """Peak and time of a plan, both predicted, against plain PyTorch."""
    decisions = plan.decisions
    peak, budget = decisions.exact_peak_bytes, decisions.problem.budget_bytes
    plain, time = plain_peak(decisions.problem), plain_time(decisions.problem)
    of_peak = f", {peak / plain:.2f}x of plain PyTorch's {format_bytes(plain)}" if plain else ""
    of_time = f", {decisions.objective_ns / time:.2f}x of plain PyTorch's {format_time(time)}" if time else ""
    limit = "; the time limit ended the search" if plan.provenance.limit_fired else ""
    return (
        f"peak {format_bytes(peak)} within the budget of {format_bytes(budget)}{of_peak}; "
        f"step {format_time(decisions.objective_ns)} predicted{of_time}{limit}"
    )
