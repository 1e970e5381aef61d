"""Whether a server plan may run, from its decisions alone: the map of chunks, loads, times, memory and balance.

Everything is counted again by code of its own (check_*.py), in integers; nothing here makes or prices plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from treadle.planner.passes.server.check_capacity import capacity_findings
from treadle.planner.passes.server.check_levels import greedy_findings, level_findings
from treadle.planner.passes.server.check_map import Finding, map_findings
from treadle.planner.passes.server.check_parts import CountedParts, part_findings
from treadle.planner.passes.server.check_sides import side_findings
from treadle.planner.passes.server.check_times import time_findings
from treadle.planner.passes.server.decisions import ServerDecisions


def check(decisions: ServerDecisions) -> list[str]:
    """Findings, each with its path; none for a plan that may run, whose figures are those of its problem, and whose map
    is as even as a greedy one."""
    return sound(decisions) or uneven(decisions)


def sound(decisions: ServerDecisions) -> list[str]:
    """Findings; none for a plan that may run and whose figures are those of its problem, be there more even maps."""
    found: list[Finding] = [*decisions.problems()]
    found = found or [*map_findings(decisions)]
    return _lines(found or _figures(decisions))


def uneven(decisions: ServerDecisions) -> list[str]:
    """Where chunks of a sound plan are given out less evenly than longest first."""
    return _lines(greedy_findings(decisions))


def _figures(decisions: ServerDecisions) -> Iterator[Finding]:
    """What is wrong with the figures of a map that is free of findings."""
    counted = CountedParts(decisions)
    yield from level_findings(decisions)
    yield from part_findings(decisions, counted)
    yield from time_findings(decisions, counted)
    yield from capacity_findings(decisions, counted)
    yield from side_findings(decisions)


def _lines(findings: Iterable[Finding]) -> list[str]:
    return [f"{path}: found {seen}, expected {expected}" for path, seen, expected in findings]
