"""Whether a plan of ranks may run, from its decisions alone."""

from __future__ import annotations

from treadle.planner.passes.ranks.decisions import RanksDecisions


def check(decisions: RanksDecisions) -> list[str]:
    """Findings, each with its path; none for a plan whose order is one and whose costs are those of its problem."""
    found = [*decisions.problem.problems()]
    return [f"$.decisions.problem{path[1:]}: found {seen}, expected {expected}" for path, seen, expected in found]
