"""Whether a checkpoint plan may run, from its decisions alone: holders, pieces, own copies, survival and what it costs.

Everything is counted again by code of its own (check_*.py); nothing here makes or prices plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from treadle.planner.passes.checkpoint.check_costs import cost_findings
from treadle.planner.passes.checkpoint.check_own import own_findings
from treadle.planner.passes.checkpoint.check_pieces import piece_findings
from treadle.planner.passes.checkpoint.check_placement import Finding, placement_findings
from treadle.planner.passes.checkpoint.check_survival import survival_findings
from treadle.planner.passes.checkpoint.decisions import CheckpointDecisions


def check(decisions: CheckpointDecisions) -> list[str]:
    """Findings, each with its path; none for a plan that may run and whose figures are those of its problem."""
    found: list[Finding] = [*decisions.problems()]
    found = found or [*_schedule(decisions)]
    return lines(found or [*survival_findings(decisions), *cost_findings(decisions)])


def lines(findings: Iterable[Finding]) -> list[str]:
    """Findings as people read them."""
    return [f"{path}: found {seen}, expected {expected}" for path, seen, expected in findings]


def _schedule(decisions: CheckpointDecisions) -> Iterator[Finding]:
    """What is wrong with what the machines do, without which no figure has a meaning."""
    yield from placement_findings(decisions)
    yield from piece_findings(decisions)
    yield from own_findings(decisions)
