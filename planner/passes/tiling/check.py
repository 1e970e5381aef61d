"""Whether a tiling plan may run, from its decisions alone: tilings, rules, moves, memory, totals, greedy steps.

Everything is counted again by code of its own (check_*.py); nothing here makes or prices plans.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.passes.tiling.check_greedy import greedy_findings
from treadle.planner.passes.tiling.check_problem import problem_findings
from treadle.planner.passes.tiling.check_published import Finding, run_findings, tiling_findings
from treadle.planner.passes.tiling.check_ruled import placement_findings, total_findings
from treadle.planner.passes.tiling.decisions import TilingDecisions


def check(decisions: TilingDecisions) -> list[str]:
    """Findings, each with its path; none for a plan that may run and whose figures are those of its problem."""
    found: list[Finding] = [*decisions.problems()]
    found = found or [*problem_findings(decisions.problem)]
    if decisions.problem.published:
        found = found or [*tiling_findings(decisions)]
        found = found or [*run_findings(decisions), *greedy_findings(decisions)]
    else:
        found = found or [*placement_findings(decisions)]
        found = found or [*total_findings(decisions), *_no_steps(decisions)]
    return [f"{path}: found {seen}, expected {expected}" for path, seen, expected in found]


def _no_steps(decisions: TilingDecisions) -> Iterator[Finding]:
    if decisions.steps:
        yield "$.decisions.steps", f"{len(decisions.steps)} steps", "none; the greedy method is for published problems"
