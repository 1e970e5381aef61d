"""First plans: within the budget and sound, at once at any size, never worse than segments alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from tests.planner.passes.memory.methods.test_checkpoints import layers
from tests.planner.passes.memory.networks import residual_network
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.lower import lower, store_all
from treadle.planner.passes.memory.methods import quick
from treadle.planner.passes.memory.methods.compose import compose
from treadle.planner.passes.memory.methods.least_peak import least_peak_schedule
from treadle.planner.passes.memory.methods.lifetimes import Lifetimes
from treadle.planner.passes.memory.methods.local_search import evict, refill
from treadle.planner.passes.memory.methods.quick import solve_quick
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.simulate import simulate


def at(problem: MemoryProblem, share: float) -> MemoryProblem:
    whole = simulate(problem, lower(problem, store_all(problem)))
    return replace(problem, budget_bytes=int(share * whole.peak_bytes))


@settings(max_examples=50)
@given(problems(max_nodes=5))
def test_a_plan_within_the_budget_wherever_the_leanest_is(problem):
    reported = []
    found = solve_quick(problem, reported.append)
    fits = simulate(problem, lower(problem, least_peak_schedule(problem))).peak_bytes <= problem.budget_bytes
    assert found is not None or not fits
    for plan in reported + [found] * (found is not None):
        assert check(decide(problem, plan)) == []


def test_segments_are_taken_where_single_evictions_lead_into_chains_of_recomputation():
    problem = at(residual_network(40, 1), 0.2)
    room = problem.budget_bytes - problem.base_bytes
    whole = Lifetimes(problem, store_all(problem))
    start_ns = whole.time_ns
    assert not evict(whole, room, most_ns=2 * start_ns)
    found = solve_quick(problem)
    assert found is not None
    assert simulate(problem, lower(problem, found)).time_ns < 1.45 * start_ns


@pytest.mark.parametrize(("budget", "fits", "least_ns"), [(90, False, 5_200), (180, True, 4_500)])
def test_blocks_that_repeat_are_composed_even_where_no_choice_fits_at_once(budget, fits, least_ns):
    problem = replace(layers(30), budget_bytes=budget)
    strict = compose(problem, quick.LEVELS, quick.ROUNDS, quick.GROUP, quick.REPEATED)
    assert (strict is not None) == fits
    found = solve_quick(problem)
    assert found is not None
    assert check(decide(problem, found)) == []
    assert simulate(problem, lower(problem, found)).time_ns <= least_ns


def test_work_has_an_end(monkeypatch):
    """A plan of least peak that is too large to fill is the answer where nothing else is."""
    problem = at(residual_network(12, 1), 0.3)
    lives = Lifetimes(problem, store_all(problem))
    assert not evict(lives, 0, most_work=lives.work + 500)
    assert lives.work < 5_000
    least = least_peak_schedule(problem)
    lives = Lifetimes(problem, least)
    refill(lives, problem.budget_bytes, most_work=lives.work - 1)
    assert lives.schedule() == least
    monkeypatch.setattr(quick, "evict", lambda *ways: False)
    monkeypatch.setattr(quick, "RUNS", 10)
    problem = replace(problem, budget_bytes=simulate(problem, lower(problem, least)).peak_bytes)
    assert solve_quick(problem) == least_peak_schedule(problem)
