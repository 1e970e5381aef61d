"""Checkpoints: sound, of about one more forward pass, and of a few in little memory."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.bound import least_bytes
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.lower import lower, store_all
from treadle.planner.passes.memory.methods.checkpoints import solve_checkpoints
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.simulate import Simulation, simulate


def result(problem: MemoryProblem) -> Simulation:
    return simulate(problem, lower(problem, solve_checkpoints(problem)))


def layers(count: int) -> MemoryProblem:
    """Blocks of four nodes with a shortcut, between which one tensor crosses; every node takes the same time."""
    fwd, bwd = [cases.forward(4, (), (0, 10))], []
    for at in range(count):
        first = 4 * at
        fwd += [cases.forward(9, (first,), (0, 10)), cases.forward(9, (first + 1,), (0, 10))]
        fwd += [cases.forward(9, (first + 2,), (0, 10)), cases.forward(4, (first, first + 3), (0, 10))]
    for i in reversed(range(1, 4 * count + 1)):
        bwd.append(cases.backward(9, 9, ((i - 1,), 0, 20)))
    return cases.problem(0, fwd, bwd)


@settings(max_examples=50)
@given(problems(max_nodes=5))
def test_plans_are_sound_and_say_themselves_whether_they_fit(problem):
    plan = solve_checkpoints(problem)
    if simulate(problem, lower(problem, plan)).peak_bytes <= problem.budget_bytes:
        assert check(decide(problem, plan)) == []


@pytest.mark.parametrize(("share", "passes"), [("1", 0), ("3/4", 1), ("1/2", 1), ("1/3", 1), ("1/40", 4)])
def test_a_long_network_runs_again_once_and_in_little_memory_a_few_times(share, passes):
    problem = layers(40)
    whole = simulate(problem, lower(problem, store_all(problem)))
    least = least_bytes(problem)
    problem = replace(problem, budget_bytes=least + int(Fraction(share) * (whole.peak_bytes - least)))
    found, forward_ns = result(problem), 10 * len(problem.fwd)
    assert found.peak_bytes <= problem.budget_bytes
    assert found.time_ns - whole.time_ns <= passes * forward_ns
