"""Rounded relaxations: plans that hold and lose little."""

from __future__ import annotations

from hypothesis import given, settings

from tests.planner.passes.memory.dynamic import optimum
from tests.planner.passes.memory.formulation.test_checkpoint import long_chain
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.lower import lower
from treadle.planner.passes.memory.methods.rounding import solve_rounding
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.relaxation import lower_bound
from treadle.planner.passes.memory.simulate import simulate


@given(problems())
@settings(max_examples=12)
def test_plans_hold_and_are_not_below_the_optimum(problem):
    best = optimum(problem)
    found = solve_rounding(problem)
    if best is None:
        assert found.schedule is None
        return
    if found.schedule is not None:
        assert check(decide(problem, found.schedule)) == []
        assert simulate(problem, lower(problem, found.schedule)).time_ns >= best


def test_a_chain_loses_little_to_the_lower_bound():
    problem = long_chain(40, 60)
    reported = []
    found = solve_rounding(problem, on_better=reported.append)
    time = simulate(problem, lower(problem, found.schedule)).time_ns
    bound = lower_bound(problem).time_ns
    assert bound <= time <= 1.15 * bound
    assert reported[-1] == found.schedule
    assert solve_rounding(problem) == found
