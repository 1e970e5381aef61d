"""One problem at many budgets: the curve of time over bytes, each point started from what its neighbours found.

A plan within a smaller budget fits every larger one, and a lower bound of a larger budget holds for every smaller one.
So budgets are solved in increasing order, each from the best plan below it; then bounds are passed down, and no point
is dominated by another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec

from treadle.planner.documents.plan import InputRef, Plan
from treadle.planner.errors import InfeasibleError, LimitError
from treadle.planner.passes.memory.bound import once
from treadle.planner.passes.memory.decisions import MemoryDecisions
from treadle.planner.passes.memory.minimum import Minimum
from treadle.planner.passes.memory.planning import Budget, plan_of, prepared, publishing, with_budget
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.search.attempts import MemoryOptions
from treadle.planner.passes.memory.search.rounds import BoundedSchedule, BudgetTooSmall, Interrupted, search
from treadle.planner.solver import Progress


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One budget: a plan, or why there is none. `infeasible` is proved; `reason` carries the least feasible budget."""

    budget_bytes: int
    plan: Plan[MemoryDecisions] | None = None
    infeasible: bool = False
    reason: str = ""


def sweep(
    problem: MemoryProblem,
    budgets: Iterable[Budget],
    options: MemoryOptions,
    *,
    inputs: dict[str, InputRef] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_point: Callable[[Point], None] = lambda point: None,
    on_plan: Callable[[Plan[MemoryDecisions]], None] = lambda plan: None,
) -> list[Point]:
    """A checked point for each budget, in increasing order of bytes, equal budgets once.

    `on_point` is called with each as it is solved, before its neighbours improve it, and `on_plan` with the best plan
    so far of the current budget, as in `treadle.planner.passes.memory.planning.plan_memory`. Ctrl-C and SIGTERM
    end the search; larger budgets then have the best plan of smaller ones. Raises InputError as `plan_memory` does.
    """
    whole = [prepared(with_budget(problem, budget, options), options) for budget in budgets]
    tasks = sorted({task.budget_bytes: task for task in whole}.items())
    found: dict[int, BoundedSchedule] = {}
    reasons: dict[int, tuple[bool, str]] = {}
    start: BoundedSchedule | None = None
    least: Minimum | None = None
    for budget, task in tasks:
        if start is not None and start.interrupted:
            found[budget] = replace(start, bound=once(task), parts=("start",), solver_status=None)
            continue
        if least is not None and budget < least.proved_bytes:
            reasons[budget] = True, str(BudgetTooSmall(task, least))
            on_point(Point(budget_bytes=budget, infeasible=True, reason=reasons[budget][1]))
            continue
        try:
            tick, offer = publishing(task, options, inputs, on_progress, on_plan)
            start = search(task, options, tick, offer, start=None if start is None else start.schedule)
        except (InfeasibleError, LimitError) as error:
            reasons[budget] = isinstance(error, InfeasibleError), str(error)
            least = error.minimum if isinstance(error, BudgetTooSmall) else least
            on_point(Point(budget_bytes=budget, infeasible=reasons[budget][0], reason=str(error)))
            if isinstance(error, Interrupted):
                break
            continue
        found[budget] = start
        on_point(Point(budget_bytes=budget, plan=plan_of(task, start, options, inputs)))
    bound: BoundedSchedule | None = None
    for budget, _ in reversed(tasks):
        if budget in found:
            found[budget] = bound = _bounded(found[budget], bound)
    return [
        Point(
            budget_bytes=budget,
            plan=plan_of(task, found[budget], options, inputs) if budget in found else None,
            infeasible=reasons.get(budget, (False, ""))[0],
            reason=reasons.get(budget, (False, "" if budget in found else "not tried: interrupted before"))[1],
        )
        for budget, task in tasks
    ]


def _bounded(found: BoundedSchedule, larger: BoundedSchedule | None) -> BoundedSchedule:
    """`found` with the bound of a larger budget where that is better."""
    if larger is None or larger.bound.time_ns <= found.bound.time_ns:
        return found
    return replace(found, bound=larger.bound.of_plan(found.time_ns))
