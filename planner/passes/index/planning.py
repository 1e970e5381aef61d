"""From a problem of choosing an index to a checked plan: the whole pass in one function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from treadle.planner.documents.plan import InputRef, Plan, Provenance
from treadle.planner.documents.tuned import Tuned
from treadle.planner.errors import InputError
from treadle.planner.passes.index.bound import lower_bound, sentence
from treadle.planner.passes.index.check import check
from treadle.planner.passes.index.choosing import outcomes, predictions
from treadle.planner.passes.index.decided import decided
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.problem import IndexProblem
from treadle.planner.search.certified import certified
from treadle.planner.search.clock import Clock
from treadle.planner.search.top import recorded
from treadle.planner.solver import Progress
from treadle.planner.version import TOOL


@dataclass(frozen=True)
class IndexOptions:
    """None: what was measured, and how much memory is allowed, are parts of the problem."""


DEFAULTS = IndexOptions()


def plan_index(
    problem: IndexProblem,
    *,
    options: IndexOptions = DEFAULTS,
    clock: Clock | None = None,
    inputs: Mapping[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_plan: Callable[[Plan[IndexDecisions]], None] | None = None,
) -> Plan[IndexDecisions]:
    """The fastest measured configuration within the memory, or the best predicted one where `top` is 0; checked.

    Nothing is searched, so `clock` never ends it; its Ctrl-C is recorded where it cut the measuring short. Raises
    InputError for a problem that is not sound, InfeasibleError where all measured ones take too much memory.
    """
    for path, found, expected in problem.problems():
        raise InputError(f"found {found}, expected {expected}", where="problem of an index", path=path)
    decisions = decided(problem)
    interrupted = problem.cut_short and clock is not None and clock.stop.is_set()
    plan = certified(
        decisions,
        time_ns=decisions.time_ns,
        bound=lower_bound(decisions),
        sentence=sentence,
        check=check,
        inputs=inputs or {},
        provenance=Provenance(
            tool=TOOL,
            method="fastest measured" if problem.top else "best predicted",
            tuned=_record(problem),
            limit_fired=problem.cut_short and not interrupted,
            interrupted=interrupted,
        ),
    )
    if on_plan is not None:
        on_plan(plan)
    return plan


def _record(problem: IndexProblem) -> tuple[Tuned, ...]:
    """What was measured of what the evaluator ranked; none where nothing was."""
    if not problem.top:
        return ()
    return (recorded("leaves", problem.model, predictions(problem), problem.top, outcomes(problem)),)
