"""Budget sweeps: monotone, never dominated, infeasible points named."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.dynamic import optimum
from tests.planner.passes.memory.formulation.test_checkpoint import long_chain
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.bound import SENTENCES, least_time
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.search import sweep as sweeping
from treadle.planner.passes.memory.search.attempts import MemoryOptions
from treadle.planner.passes.memory.search.rounds import BoundedSchedule, Interrupted, search
from treadle.planner.passes.memory.search.sweep import sweep
from treadle.planner.search.bound import Argument

EXACT = MemoryOptions(gap=0.0)
NARROW = Argument("solved")


@given(problems(max_nodes=3), st.lists(st.integers(1, 24), min_size=2, max_size=5))
@settings(max_examples=15)
def test_points_are_optima_and_infeasible_points_are_named(problem, budgets):
    points = sweep(problem, budgets, EXACT)
    assert [point.budget_bytes for point in points] == sorted(set(budgets))
    for point in points:
        best = optimum(replace(problem, budget_bytes=point.budget_bytes))
        assert point.infeasible == (best is None)
        assert (point.plan and point.plan.decisions.objective_ns) == best
        assert ("least feasible" in point.reason) == point.infeasible


def test_no_point_is_dominated():
    """With a rough method: more bytes never take longer, fewer bytes never have the lower bound."""
    problem = long_chain(24, 1)
    reported = []
    points = sweep(
        problem, [Fraction(k, 10) for k in range(1, 12)], MemoryOptions(method="heuristic"), on_point=reported.append
    )
    plans = [point.plan for point in points if point.plan is not None]
    assert len(plans) > 6
    assert points[0].infeasible
    times = [plan.decisions.objective_ns for plan in plans]
    bounds = [plan.certificate.lower_bound for plan in plans]
    assert times == sorted(times, reverse=True)
    assert bounds == sorted(bounds, reverse=True)
    for plan in plans:
        assert check(plan.decisions) == []
        assert plan.decisions.problem.budget_bytes >= plan.decisions.exact_peak_bytes
    assert [point.budget_bytes for point in reported] == [point.budget_bytes for point in points]


def test_a_plan_of_a_smaller_budget_starts_the_next():
    first, second = sweep(cases.a(1), [6, 7], MemoryOptions(method="heuristic"))
    assert second.plan.provenance.method == "start"
    assert second.plan.decisions.program == first.plan.decisions.program


def test_an_interrupt_hands_plans_up_with_a_bound_and_its_own_argument(monkeypatch):
    def interrupted(problem, options, on_progress=None, on_better=None, start=None) -> BoundedSchedule:
        found = search(problem, options, on_progress, start=start)
        return dataclasses.replace(
            found, bound=dataclasses.replace(found.bound, argument=NARROW, scope="forward order"), interrupted=True
        )

    monkeypatch.setattr(sweeping, "search", interrupted)
    first, second = sweep(cases.a(1), [6, 8], EXACT)
    assert first.plan.certificate.argument == SENTENCES["solved"]
    assert first.plan.certificate.scope == "forward order"
    assert second.plan.provenance.interrupted
    assert second.plan.decisions.program == first.plan.decisions.program
    assert second.plan.certificate.lower_bound == least_time(second.plan.decisions.problem)
    assert second.plan.certificate.argument == SENTENCES["once"]
    assert second.plan.certificate.scope == "any order"


def test_an_interrupt_before_any_plan_leaves_larger_budgets_alone(monkeypatch):
    def interrupted(problem, options, on_progress=None, on_better=None, start=None) -> BoundedSchedule:
        raise Interrupted("enough")

    monkeypatch.setattr(sweeping, "search", interrupted)
    first, second = sweep(cases.a(1), [6, 8], EXACT)
    assert (first.infeasible, first.reason) == (False, "enough")
    assert (second.infeasible, second.reason) == (False, "not tried: interrupted before")


def test_each_budget_tells_of_its_best_plan_before_it_is_done():
    reported = []
    points = sweep(
        cases.a(10),
        [6, 8],
        MemoryOptions(gap=0.0),
        on_plan=reported.append,
        on_point=lambda point: reported.append(None),
    )
    budgets = [plan and plan.decisions.problem.budget_bytes for plan in reported]
    assert budgets[0] == 6
    assert 8 in budgets[budgets.index(None) : -1]
    assert all(check(plan.decisions) == [] for plan in reported if plan is not None)
    assert [point.budget_bytes for point in points] == [6, 8]
