"""From a compression problem to a checked plan: the whole pass in one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.errors import InputError
from treadle.planner.passes.compression.bound import compute, lower_bound, sentence
from treadle.planner.passes.compression.check import check
from treadle.planner.passes.compression.decided import decided, plain_groups
from treadle.planner.passes.compression.decisions import CompressionDecisions
from treadle.planner.passes.compression.evaluator import Evaluator
from treadle.planner.passes.compression.fused import exact_groups, published
from treadle.planner.passes.compression.joint import joint
from treadle.planner.passes.compression.local_search import Groups
from treadle.planner.passes.compression.problem import CompressionProblem
from treadle.planner.search.bound import Argument, Bound
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.search.incumbent import Incumbent
from treadle.planner.solver import Progress, relative_gap
from treadle.planner.version import TOOL

UNCOMPRESSED = "uncompressed"
"""The plan that sends every gradient as it is and alone."""


@dataclass(frozen=True)
class CompressionOptions:
    """as_published: the method of its paper without what was added here. bubble_pruning: Espresso leaves gradients that
    are sent before an idle gap of the links as they are. `time_limit_s` is a safety net; what it ends may differ
    between runs."""

    method: Literal["joint", "espresso", "cupcake"] = "joint"
    as_published: bool = False
    time_limit_s: float = 60.0
    bubble_pruning: bool = True


DEFAULTS = CompressionOptions()


@dataclass
class _Search:
    """The plans found by name, the best of them, and what the search records."""

    problem: CompressionProblem
    evaluator: Evaluator
    clock: Clock
    incumbent: Incumbent[Groups]
    on_progress: Callable[[Progress], None] | None
    least_ns: int
    found: dict[str, Groups] = field(default_factory=dict)
    best: Groups = ()
    best_ns: int = 0
    method: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    limit_fired: bool = False

    def stopped(self) -> bool:
        """Whether no more work may begin; publishes what is due."""
        self.incumbent.poll()
        self.limit_fired = self.limit_fired or self.clock.now() > self.incumbent.search_ends
        return self.limit_fired or self.clock.stop.is_set()

    def offer(self, groups: Groups, ns: int, name: str) -> None:
        """`groups` are the best so far if they take less time."""
        if self.best and ns >= self.best_ns:
            return
        self.best, self.best_ns, self.method = groups, ns, name
        self.incumbent.offer(groups)
        if self.on_progress is not None:
            gap = relative_gap(ns, self.least_ns)
            self.on_progress(Progress(ns, self.least_ns, gap, self.clock.elapsed_s, name))

    def add(self, plans: Mapping[str, Groups], *, rivals: bool = False) -> None:
        """More plans by name; rivals are only what others are compared with."""
        for name, groups in plans.items():
            self.found[name] = groups
            if not rivals:
                self.offer(groups, self.evaluator.time(groups), name)


def plan_compression(
    problem: CompressionProblem,
    *,
    options: CompressionOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[CompressionDecisions]], None] | None = None,
) -> Plan[CompressionDecisions]:
    """The fastest plan found for one iteration, checked. It may compress nothing.

    `on_plan` is called with the best checked plan so far, marked as interrupted. Ctrl-C and SIGTERM end the search with
    the best plan so far. Raises InputError for a problem that is not sound.
    """
    clock = clock or Clock.of(options.time_limit_s)
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="compression problem", path=path)
    with clock.listening():
        return _planned(problem, options, clock, inputs or {}, on_progress, on_plan)


def _planned(
    problem: CompressionProblem,
    options: CompressionOptions,
    clock: Clock,
    inputs: Mapping[str, InputRef],
    on_progress: Callable[[Progress], None] | None,
    on_plan: Callable[[Plan[CompressionDecisions]], None] | None,
) -> Plan[CompressionDecisions]:
    bound = compute(problem)

    def plan(groups: Groups, interrupted: bool = True) -> Plan[CompressionDecisions]:
        decisions = decided(problem, groups, search.found)
        return certified(
            decisions,
            time_ns=decisions.time_ns,
            bound=bound.of_plan(decisions.time_ns),
            sentence=sentence,
            check=check,
            inputs=inputs,
            provenance=Provenance(
                tool=TOOL,
                method=search.method,
                parts=tuple(search.found),
                options={**asdict(options), **search.record, "evaluations": search.evaluator.evaluations,
                         "candidates_ns": {name: evaluator.time(each) for name, each in search.found.items()}},
                limit_fired=search.limit_fired,
                interrupted=clock.stop.is_set() or interrupted,
            ),
        )  # fmt: skip

    publish = (lambda groups: on_plan(plan(groups))) if on_plan is not None else lambda groups: None
    incumbent = Incumbent[Groups](publish, ends=clock.ends, now=clock.now)
    evaluator = Evaluator(problem)
    search = _Search(problem, evaluator, clock, incumbent, on_progress, bound.time_ns)
    faithful = options.as_published and bool(problem.names) and problem.compressions != 0
    search.add({UNCOMPRESSED: plain_groups(problem)}, rivals=faithful)
    if options.method != "espresso":
        _cupcake(search, options.as_published)
    bound = lower_bound(problem, search.stopped)
    search.least_ns = bound.time_ns
    if options.method == "joint":
        result = joint(
            problem, evaluator, search.found, stopped=search.stopped,
            offer=lambda groups, ns: search.offer(groups, ns, "joint"),
        )  # fmt: skip
        if result.exact is not None:
            search.record["nodes"] = result.exact.nodes
            if result.exact.complete:
                bound = Bound(result.ns, Argument("search", facts={"nodes": result.exact.nodes}))
    return plan(search.best, clock.stop.is_set())


def _cupcake(search: _Search, as_published: bool) -> None:
    """Adds the plans of Cupcake."""
    if as_published:
        plans = published(search.problem, search.stopped)
    else:
        plans = exact_groups(search.problem, expired=search.stopped)
    search.record["decoding"] = "ignore" if as_published else "fold"
    search.record["model_ns"] = {name: each.model_ns for name, each in plans.items()}
    searched = {name: each.searched for name, each in plans.items() if each.searched is not None}
    if searched:
        search.record["nodes"] = sum(each.nodes for each in searched.values())
        search.record["incomplete"] = [name for name, each in searched.items() if not each.complete]
    search.add({name: each.groups for name, each in plans.items()})
