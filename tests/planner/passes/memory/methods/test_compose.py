"""Plans composed of segments."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.dynamic import optimum
from tests.planner.passes.memory.networks import residual_network
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.formulation.checkpoint import formulate
from treadle.planner.passes.memory.lower import lower, store_all
from treadle.planner.passes.memory.methods.compose import compose, solve_segments
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.simulate import simulate
from treadle.planner.solver import Status, solve


def within(problem: MemoryProblem, share: float) -> MemoryProblem:
    whole = simulate(problem, lower(problem, store_all(problem)))
    return replace(problem, budget_bytes=int(share * whole.peak_bytes))


@settings(max_examples=8)
@given(st.integers(3, 5), st.integers(0, 200), st.booleans(), st.floats(0.4, 0.9))
def test_the_estimate_is_no_less_than_the_exact_peak(blocks, seed, skips, share):
    problem = within(residual_network(blocks, seed, skips), share)
    found = compose(problem, levels=3, rounds=2, group=3)
    if found is not None:
        schedule, estimate = found
        exact = simulate(problem, lower(problem, schedule))
        assert exact.peak_bytes <= estimate <= problem.budget_bytes
        assert check(decide(problem, schedule)) == []


@settings(max_examples=25)
@given(problems(max_nodes=4))
def test_small_problems(problem):
    """Within a quarter of the optimum, found whenever there is a plan; a plan passes the check."""
    best = optimum(problem)
    schedule = solve_segments(problem)
    assert (schedule is None) == (best is None)
    if schedule is not None and best is not None:
        decisions = decide(problem, schedule)
        assert check(decisions) == []
        assert best <= decisions.objective_ns <= 1.25 * best


@pytest.mark.parametrize(("seed", "skips"), [(0, False), (1, True), (2, False), (3, True)])
def test_close_to_the_program(seed, skips):
    """At most 3 % above the optimum of the 0-1 program of the whole problem."""
    problem = within(residual_network(3, seed, skips), 0.7)
    program = formulate(problem)
    solution = solve(program.model, backend="highs", time_limit_s=60)
    schedule = solve_segments(problem)
    if solution.status is Status.INFEASIBLE:
        return
    assert solution.status is Status.OPTIMAL
    assert schedule is not None
    assert decide(problem, schedule).objective_ns <= 1.03 * solution.objective * program.time_unit


def chain(size: int, budget: int) -> MemoryProblem:
    """A uniform chain: unit outputs and times, each backward node reads the input of its forward node."""
    bwd = [cases.backward(0, 0, ((k - 1,) if k else (), 0, 1)) for k in reversed(range(size))]
    return cases.problem(budget, cases.chain(*(1,) * size), bwd)


@pytest.mark.parametrize(("size", "budget"), [(8, 8), (8, 6), (8, 5), (8, 4), (12, 6), (12, 5)])
def test_a_uniform_chain(size, budget):
    """As good as an exact solve of the whole chain."""
    problem = chain(size, budget)
    schedule = solve_segments(problem, effort=2)
    assert schedule is not None
    solution = solve(formulate(problem).model, backend="highs", time_limit_s=60)
    assert solution.status is Status.OPTIMAL
    assert decide(problem, schedule).objective_ns <= solution.objective


def test_better_and_better():
    """Each reported plan is faster than the one before; the last one is the answer, the same each time."""
    problem = within(residual_network(3, 5), 0.6)
    reported = []
    schedule = solve_segments(problem, on_better=reported.append)
    times = [decide(problem, plan).objective_ns for plan in reported]
    assert times == sorted(set(times), reverse=True)
    assert reported[-1] == schedule == solve_segments(problem)


def test_no_plan():
    assert solve_segments(replace(residual_network(3, 0), budget_bytes=11)) is None
