"""Plans without a solver are sound, and good on chains."""

from __future__ import annotations

from hypothesis import given, settings
from msgspec.structs import replace

from planner.memory.check import check
from planner.memory.heuristics import best_heuristic, chen, greedy, recompute_from
from planner.memory.lower import lower, prune, store_all
from planner.memory.planning import decide
from planner.memory.simulate import simulate
from tests.planner.memory import cases
from tests.planner.memory.dynamic import optimum
from tests.planner.memory.strategies import problems
from tests.planner.memory.test_checkpoint import long_chain


@given(problems(max_nodes=6))
@settings(max_examples=15)
def test_every_plan_is_sound(problem):
    for result, schedule in (*chen(problem), *greedy(problem)):
        decisions = decide(replace(problem, budget_bytes=max(1, result.peak_bytes)), schedule)
        assert check(replace(decisions, bound_peak_bytes=result.peak_bytes)) == []


@given(problems())
@settings(max_examples=40)
def test_no_heuristic_beats_the_optimum(problem):
    schedule = best_heuristic(problem)
    if schedule is not None:
        result = simulate(problem, lower(problem, schedule))
        assert result.peak_bytes <= problem.budget_bytes
        assert result.time_ns >= optimum(problem)


def test_segments_of_a_long_chain_need_about_the_square_root_of_its_bytes():
    problem = cases.problem(
        30,
        cases.chain(*[1] * 100),
        [cases.backward(1, 1, ((k - 1,) if k else (), 0, 1)) for k in reversed(range(100))],
    )
    best = min(result.peak_bytes for result, _ in chen(problem))
    whole = simulate(problem, lower(problem, store_all(problem))).peak_bytes
    assert whole == 101
    assert best <= 22
    result = simulate(problem, lower(problem, best_heuristic(problem)))
    assert result.time_ns <= 300


def test_nothing_is_recomputed_from_what_is_kept():
    problem = long_chain(9, 100)
    schedule = prune(problem, recompute_from(problem, frozenset({2, 5})))
    assert schedule.kept[0] == {2, 5}
    assert {run.node for stage in schedule.runs[1:] for run in stage} == {0, 1, 3, 4, 6, 7}
    assert max(len(stage) for stage in schedule.runs[1:]) == 2
