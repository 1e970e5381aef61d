"""Whether the idle spans of a plan are still there: pieces delay the training where they have shrunk."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from treadle.checkpoint.pacing import number_of, planned_messages, scaled
from treadle.planner.documents.scalars import format_time
from treadle.planner.passes.checkpoint.problem import CheckpointProblem

log = logging.getLogger("treadle.checkpoint")
IN_A_ROW = 5
"""Iterations in which a span is too short before that is said."""


class SpanSlip(NamedTuple):
    """A span of the plan, how long it was in the last iteration, and by how much it was shorter than what the plan
    fills of it."""

    after: str
    planned_ns: int
    measured_ns: int
    slip_ns: int


class SpanGuard:
    """Compares the spans of each iteration with the plan's, and warns once of each that is too short for several
    iterations in a row. The last span has no end, so it is none of them."""

    def __init__(self, problem: CheckpointProblem) -> None:
        self.problem = problem
        self.slips: tuple[SpanSlip, ...] = ()
        self._planned = planned_messages(problem)
        self._short = [0] * len(problem.spans)

    def watch(self, idle_ns: Sequence[int]) -> None:
        """An iteration had these idle times after each number of its messages."""
        messages = len(idle_ns) - 1
        found = []
        for place, span in enumerate(self.problem.spans[:-1]):
            measured = idle_ns[scaled(number_of(span.after) + 1, self._planned, messages)]
            slip = max(0, span.length_ns * self.problem.fill_ppm // 1_000_000 - measured)
            found.append(SpanSlip(span.after, span.length_ns, measured, slip))
            self._short[place] = self._short[place] + 1 if slip else 0
            if self._short[place] == IN_A_ROW:
                log.warning(
                    "the links are idle for %s after %s, the plan has %s: pieces of checkpoints delay the training; "
                    "plan again from a new trace",
                    format_time(measured),
                    span.after,
                    format_time(span.length_ns),
                )
        self.slips = tuple(found)
