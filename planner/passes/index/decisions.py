"""What the index pass decides: the configuration, and what it was preferred to."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.planner.documents.scalars import Count, Decisions, Positive
from treadle.planner.passes.index.configurations import IndexConfiguration
from treadle.planner.passes.index.problem import Finding, IndexCandidate, IndexProblem


class IndexDecisions(Decisions, frozen=True, kw_only=True, tag_field="pass", tag="index"):
    """`time_ns` of the trace subset as measured, or as predicted where nothing was measured. `second` is the fastest
    other configuration that is allowed, and what it takes."""

    problem: IndexProblem
    chosen: IndexConfiguration
    time_ns: Positive
    bytes: Positive | None = None
    """As measured."""
    second: IndexConfiguration | None = None
    second_ns: Positive | None = None
    over_memory: Count = 0
    """Measured configurations that take more memory than allowed."""

    @property
    def candidate(self) -> IndexCandidate:
        """The chosen configuration with what was predicted and measured of it."""
        return next(each for each in self.problem.candidates if each.configuration == self.chosen)

    def problems(self) -> Iterator[Finding]:
        for path, found, expected in self.problem.problems():
            yield path.replace("$", "$.decisions.problem", 1), found, expected
        known = [each.configuration for each in self.problem.candidates]
        for name in ("chosen", "second"):
            one = getattr(self, name)
            if one is not None and one not in known:
                yield f"$.decisions.{name}", "another configuration", "one of the candidates"
        if (self.second is None) != (self.second_ns is None):
            yield "$.decisions.second_ns", f"{self.second_ns}", "a time if, and only if, there is a second"
