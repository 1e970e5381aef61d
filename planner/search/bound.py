"""A proven lower bound, and why it holds as data; each pass prints its own sentence of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from treadle.planner.documents.plan import Scope

Facts = Mapping[str, int | float | str]


@dataclass(frozen=True)
class Argument:
    """Why a bound holds: the kind of proof and what it rests on.

    terms: times in ns that add up to the bound, by what takes them; empty if the bound is no such sum. facts: the other
    numbers and names of the sentence.
    """

    kind: str
    terms: Mapping[str, int] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)

    def printed(self, sentences: Mapping[str, str]) -> str:
        """The sentence of its kind, with the terms and facts in it."""
        return sentences[self.kind].format(**self.terms, **self.facts)


@dataclass(frozen=True)
class Bound:
    """No plan within `scope` takes less than `time_ns`; without a scope no plan at all."""

    time_ns: int
    argument: Argument
    scope: Scope | None = None

    def of_plan(self, time_ns: int) -> Bound:
        """The bound for a plan that takes `time_ns`, at most that: solvers prove to tolerances only."""
        return self if self.time_ns <= time_ns else replace(self, time_ns=time_ns)
