"""Plans of least peak, least budgets, and what is said of a budget without a plan."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.strategies import problems
from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.memory import minimum
from treadle.planner.passes.memory.bound import least_bytes
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.lower import lower
from treadle.planner.passes.memory.methods.heuristics import Planner, chen
from treadle.planner.passes.memory.methods.least_peak import least_peak_schedule, schedule_keeping
from treadle.planner.passes.memory.planning import decide, plan_memory
from treadle.planner.passes.memory.simulate import simulate


def peak(problem, schedule) -> int:
    return simulate(problem, lower(problem, schedule)).peak_bytes


@given(problems(max_nodes=6))
@settings(max_examples=40)
def test_the_leanest_plan_is_sound_and_no_bound_is_above_it(problem):
    for schedule in (least_peak_schedule(problem), schedule_keeping(problem, frozenset())):
        decisions = decide(problem, schedule)
        assert decisions.exact_peak_bytes >= least_bytes(problem)
        roomy = replace(problem, budget_bytes=max(1, decisions.bound_peak_bytes))
        assert check(decide(roomy, schedule)) == []


def test_a_chain_of_hundreds_needs_no_solve(monkeypatch):
    bwd = [cases.backward(4, 4, ((k - 1,) if k else (), 0, 1)) for k in reversed(range(300))]
    problem = cases.problem(12, cases.chain(*[4] * 300), bwd)
    monkeypatch.setattr(minimum, "solve", None)
    least = minimum.least_budget(problem)
    assert least.budget_bytes == least.proved_bytes == 12
    assert peak(problem, least.schedule) == 12
    planner = Planner.of(problem)
    assert min(peak(problem, planner.schedule(kept)) for kept in chen(problem)) > 100
    with pytest.raises(InfeasibleError, match="below the least feasible 12 B"):
        plan_memory(replace(problem, budget_bytes=11))


def test_the_small_way_to_run_everything_is_taken():
    problem = cases.c(33, conv=True, out=True, intermediate=True)
    assert peak(problem, least_peak_schedule(problem)) == 33


def test_keeping_what_lies_behind_the_peak_lowers_it():
    """Making node 2 again passes node 1, which is large; kept, it is small."""
    fwd = [cases.forward(1), cases.forward(20, (0,)), cases.forward(2, (1,)), cases.forward(1, (2,))]
    bwd = [cases.backward(0, 0, ((3,), 0, 1)), cases.backward(0, 15, ((2,), 0, 1))]
    problem = cases.problem(30, fwd, bwd)
    assert peak(problem, schedule_keeping(problem, frozenset())) == 37
    assert peak(problem, least_peak_schedule(problem)) == 22
