"""Rounded relaxations: plans that hold, bounds that no plan is below."""

from __future__ import annotations

from hypothesis import given, settings

from planner.memory.check import check
from planner.memory.lower import lower
from planner.memory.planning import decide
from planner.memory.rounding import solve_rounding
from planner.memory.simulate import simulate
from tests.planner.memory.dynamic import optimum
from tests.planner.memory.strategies import problems
from tests.planner.memory.test_checkpoint import long_chain


@given(problems())
@settings(max_examples=12)
def test_plans_hold_and_lie_between_bound_and_need(problem):
    best = optimum(problem)
    found = solve_rounding(problem)
    if best is None:
        assert found.schedule is None
        return
    assert not found.infeasible
    assert found.bound_ns <= best
    if found.schedule is not None:
        assert check(decide(problem, found.schedule)) == []
        assert simulate(problem, lower(problem, found.schedule)).time_ns >= best


def test_a_chain_loses_little_to_its_bound():
    problem = long_chain(40, 60)
    heard = []
    found = solve_rounding(problem, on_better=heard.append)
    time = simulate(problem, lower(problem, found.schedule)).time_ns
    assert found.bound_ns <= time <= 1.15 * found.bound_ns
    assert heard[-1] == found.schedule
    assert solve_rounding(problem) == found
