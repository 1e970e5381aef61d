"""From a problem of sparse gradients to a checked plan: the whole pass in one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.documents.tuned import Tuned
from treadle.planner.errors import InputError
from treadle.planner.passes.sparse.bound import lower_bound, sentence
from treadle.planner.passes.sparse.check import check
from treadle.planner.passes.sparse.decided import decided
from treadle.planner.passes.sparse.decisions import SparseDecisions
from treadle.planner.passes.sparse.problem import SparseProblem
from treadle.planner.passes.sparse.tuning import tuned
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.search.in_turns import Measuring, cut_short
from treadle.planner.solver import Progress
from treadle.planner.version import TOOL


@dataclass(frozen=True)
class SparseOptions:
    """any_order: sums may add participants in another order than by their numbers, if it is the same on all of
    them. measuring: how the cheapest schemes of each gradient are measured, if they are."""

    any_order: bool = False
    measuring: Measuring[SparseDecisions] | None = None


DEFAULTS = SparseOptions()


def plan_sparse(
    problem: SparseProblem,
    *,
    options: SparseOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[SparseDecisions]], None] | None = None,
) -> Plan[SparseDecisions]:
    """The cheapest scheme of each gradient, checked; with `options.measuring` the fastest of the cheapest ones, where
    `clock` and Ctrl-C leave time for that. All schemes are priced, so nothing else takes time.

    Raises InputError for a problem that is not sound, and where no scheme of a gradient may be taken."""
    clock = clock or Clock()
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="problem of sparse gradients", path=path)
    decisions = decided(problem, "same" if options.any_order else "worker")
    records = tuple[Tuned, ...]()
    if options.measuring is not None and not clock.over():
        with clock.listening():
            decisions, records = tuned(decisions, options.measuring, clock)
    fired = any(cut_short(each, clock) for each in records)
    bound = lower_bound(plan.least_ns for plan in decisions.gradients)
    plan = certified(
        decisions,
        time_ns=decisions.time_ns,
        bound=bound,
        sentence=sentence,
        check=check,
        inputs=inputs or {},
        provenance=Provenance(
            tool=TOOL,
            method="every scheme priced, the cheapest measured" if records else "every scheme priced",
            options={"any_order": options.any_order},
            tuned=records,
            limit_fired=fired,
            interrupted=clock.stop.is_set(),
        ),
    )
    if on_plan is not None:
        on_plan(plan)
    return plan
