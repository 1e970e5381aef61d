"""Local search over whole plans: within the budget, accepted by the checker, never slower, and the same each time."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings
from msgspec.structs import replace

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.dynamic import optimum
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.lower import lower, store_all
from treadle.planner.passes.memory.methods.lifetimes import Lifetimes
from treadle.planner.passes.memory.methods.local_search import evict, local_search, use_leanest
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.simulate import simulate


@settings(max_examples=60)
@given(problems(max_nodes=6), st.floats(0.5, 1.0))
def test_a_plan_within_the_budget(problem, share):
    """From store-all down to a share of its peak."""
    whole = simulate(problem, lower(problem, store_all(problem)))
    problem = replace(problem, budget_bytes=int(share * whole.peak_bytes) + 1)
    lives = Lifetimes(problem, store_all(problem))
    assume(evict(lives, problem.budget_bytes))
    found = lives.time_ns
    other = Lifetimes(problem, lives.schedule())
    for plan in (lives, other):
        local_search(plan, problem.budget_bytes, 10)
    assert lives.schedule() == other.schedule()
    assert check(decide(problem, lives.schedule())) == []
    assert lives.time_ns <= found


@settings(max_examples=60)
@given(problems(max_nodes=4))
def test_never_below_the_optimum(problem):
    lives = Lifetimes(problem, store_all(problem))
    assume(evict(lives, problem.budget_bytes))
    local_search(lives, problem.budget_bytes, 20)
    best = optimum(problem)
    assert best is not None
    assert best <= lives.time_ns


@pytest.mark.parametrize(("budget", "time"), [(6, 15), (7, 15), (8, 13), (9, 13), (10, 12)])
def test_a_chain(budget, time):
    problem = cases.a(budget)
    lives = Lifetimes(problem, store_all(problem))
    assert evict(lives, budget)
    local_search(lives, budget, 30)
    assert lives.time_ns == time


@pytest.mark.parametrize(("budget", "time"), [(33, 25), (37, 24), (48, 22)])
def test_choice_of_operators(budget, time):
    problem = cases.c(budget, conv=True, out=True, intermediate=True)
    times = []
    for start in (lambda lives: None, use_leanest):
        lives = Lifetimes(problem, store_all(problem))
        start(lives)
        if evict(lives, budget):
            local_search(lives, budget, 150)
            times.append(lives.time_ns)
    assert min(times) == time
