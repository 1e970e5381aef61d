"""Retention intervals: the same optima as the exact dynamic program, hints, limits, and plans that leave stages out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from ortools.sat.python import cp_model

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.dynamic import optimum
from tests.planner.passes.memory.formulation.test_checkpoint import long_chain
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, prune, store_all
from treadle.planner.passes.memory.methods.retention import Retention, _Model, retained, solve_retention
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.simulate import simulate


def time_of(problem: MemoryProblem, schedule: RecomputeSchedule) -> int:
    pruned = prune(problem, schedule)
    assert check(decide(problem, pruned)) == []
    return simulate(problem, lower(problem, pruned)).time_ns


@given(problems())
@settings(max_examples=60)
def test_optima_are_those_of_the_dynamic_program(problem):
    best = optimum(problem)
    found = solve_retention(problem)
    assert found.finished
    if best is None:
        assert found == Retention(None, None, finished=True, infeasible=True, limit_fired=False)
    else:
        assert time_of(problem, found.schedule) == found.bound_ns == best


@given(problems())
@settings(max_examples=40)
def test_a_plan_to_begin_with_is_one_of_the_model(problem):
    """Fixed to its hints the model is feasible, and takes no longer than the plan."""
    start = store_all(problem)
    if simulate(problem, lower(problem, start)).peak_bytes > problem.budget_bytes:
        return
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(_Model.of(problem, start).cp) == cp_model.OPTIMAL
    assert solver.objective_value <= time_of(problem, start)
    reported = []
    found = solve_retention(problem, start, on_better=reported.append)
    assert reported[-1] == found.schedule


@pytest.mark.parametrize(("budget", "best"), [(11, None), (12, 29), (15, 29), (16, 21)])
def test_runs_in_place_let_go_of_what_they_overwrite(budget, best):
    found = solve_retention(cases.d(budget))
    assert (found.schedule and time_of(cases.d(budget), found.schedule)) == best


def test_stays_end_with_their_last_reader():
    """Nodes 1 and 2 of D run again in one stage, the second over the first."""
    problem = cases.d(12)
    schedule = prune(problem, solve_retention(problem).schedule)
    for i, stays in enumerate(retained(problem, schedule)):
        for stay, after in itertools.pairwise(stays):
            assert stay.end <= 5 * after.stage + i
        assert all(stay.end > 5 * stay.stage + i for stay in stays)


def test_a_large_problem_lets_nodes_run_twice_again_and_claims_no_bound():
    problem = long_chain(20, 24)
    found = solve_retention(problem)
    assert found.bound_ns is None
    assert not found.infeasible
    runs = [run.node for stage in found.schedule.runs for run in stage]
    assert max(map(runs.count, runs)) <= 3
    assert time_of(problem, found.schedule) < 1.3 * sum(
        impl.time_ns for node in (*problem.fwd, *problem.bwd) for impl in node.impls
    )
    again = solve_retention(problem)
    assert again == found


def test_work_is_limited():
    found = solve_retention(long_chain(60, 40), time_limit_s=1e-3)
    assert found.limit_fired
    assert not found.finished
