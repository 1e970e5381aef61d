"""Plans of indexes: what is chosen, what is recorded, and when there is none."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.index.index_plans import (
    PROBLEM,
    problem_of,
    random_problem,
    small_plan,
    twelve,
    unmeasured,
)
from treadle.check.plan import check_plan, quality
from treadle.planner.documents import store
from treadle.planner.documents.plan import Plan
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.index.check import check
from treadle.planner.passes.index.choosing import least_ratio, memory_ratio
from treadle.planner.passes.index.configurations import grid, name_of_leaves
from treadle.planner.passes.index.decided import decided
from treadle.planner.passes.index.decisions import IndexDecisions
from treadle.planner.passes.index.planning import plan_index
from treadle.planner.passes.index.problem import IndexProblem
from treadle.planner.passes.index.timeline_of import trace_of
from treadle.planner.search.clock import Clock
from treadle.planner.timeline.simulator import simulate

SEEDS = st.integers(0, 10**9)


@pytest.mark.parametrize(("top", "number"), [(10, 4), (12, 12), (1, 1), (4, 4), (3, 2)])
def test_the_fastest_of_the_measured_ones_is_taken_and_no_other(top: int, number: int) -> None:
    plan = plan_index(twelve(top))
    assert plan.decisions.chosen == grid()[number - 1]
    (record,) = plan.provenance.tuned
    assert len(record.measured) == top
    assert record.chosen == name_of_leaves(grid()[number - 1])
    assert record.place == number


def test_a_measured_configuration_that_takes_too_much_memory_is_not_taken() -> None:
    decisions = small_plan().decisions
    assert decisions.chosen == grid()[1]
    assert (decisions.time_ns, decisions.bytes, decisions.over_memory) == (350, 2500, 1)
    assert (decisions.second, decisions.second_ns) == (grid()[4], 360)
    assert memory_ratio(decisions.problem, 2500) == 2500 / (16 * 120)
    (record,) = small_plan().provenance.tuned
    excluded = {each.name: each.excluded for each in record.ranked if each.excluded}
    assert excluded == {"gapped array 2/8": "2.083x of its keys and payloads, 1.5x allowed"}


def test_where_nothing_is_measured_the_best_predicted_one_is_taken() -> None:
    plan = unmeasured()
    assert (plan.decisions.chosen, plan.decisions.time_ns, plan.decisions.bytes) == (grid()[2], 301, None)
    assert (plan.decisions.second, plan.decisions.second_ns) == (grid()[1], 401)
    assert plan.provenance.tuned == ()
    assert plan.certificate.lower_bound == 0
    assert plan.certificate.argument == "what reading the operations takes was not measured"
    assert plan.prediction.time_us == 0.301


def test_of_equal_times_the_best_predicted_one_is_taken_and_then_the_first() -> None:
    assert plan_index(problem_of((3, 2, 2), (5, 5, 5))).decisions.chosen == grid()[1]
    assert plan_index(problem_of((2, 2, 2), (6, 5, 5))).decisions.second == grid()[2]
    assert plan_index(problem_of((2, 2))).decisions.chosen == grid()[0]


def test_one_candidate_has_no_second() -> None:
    decisions = plan_index(problem_of((5,), (9,))).decisions
    assert (decisions.second, decisions.second_ns) == (None, None)


def test_no_index_answers_before_the_operations_are_read() -> None:
    proof = plan_index(problem_of((5,), (28,))).certificate
    assert (proof.lower_bound, proof.gap, proof.optimal, proof.scope) == (7, 0.75, False, None)
    assert proof.argument == "no index answers the operations sooner than they are read, which takes 7 ns"


def test_a_loop_that_took_longer_than_the_index_is_no_bound_above_it() -> None:
    plan = plan_index(problem_of((5,), (28,), loop_ns=30))
    assert (plan.certificate.lower_bound, plan.certificate.optimal) == (28, True)
    assert check_plan(plan) == []
    assert quality(plan) == "the fastest of those measured"


def test_all_over_the_memory_is_refused_with_the_least_ratio_that_would_do() -> None:
    tight = replace(PROBLEM, max_memory_ratio=1.0)
    with pytest.raises(InfeasibleError) as caught:
        plan_index(tight)
    assert str(caught.value) == (
        "none of 4 measured configurations takes at most 1x of its keys and payloads; a ratio of 1.198 would do, with "
        "gapped array 1/32"
    )
    assert plan_index(replace(tight, max_memory_ratio=1.198)).decisions.bytes == 2300


@given(size=st.integers(1, 10**12), keys=st.integers(1, 10**9))
def test_a_ratio_that_is_said_to_do_does(size: int, keys: int) -> None:
    ratio = least_ratio(size, keys)
    problem = problem_of((5,), (9,), sizes=(size,), keys_at_end=keys, max_memory_ratio=ratio)
    assert decided(problem).bytes == size
    less = replace(problem, max_memory_ratio=ratio - 2e-4)
    if ratio > 3e-4:
        with pytest.raises(InfeasibleError):
            decided(less)


def test_one_that_does_not_run_gives_its_turn_to_the_next() -> None:
    problem = problem_of((1, 2, 3, 4), (0, 9, 5, 2), top=2, failing=(0,))
    plan = plan_index(problem)
    assert plan.decisions.chosen == grid()[2]
    (record,) = plan.provenance.tuned
    assert [each.measured_ns for each in record.ranked] == [None, 9, 5, None]
    assert [each.excluded for each in record.ranked] == ["no memory", None, None, None]
    assert check_plan(plan) == []
    last = plan_index(replace(problem_of((1, 2), (4, 5), top=2, failing=(0,)), name="all tried"))
    assert last.decisions.chosen == grid()[1]


def test_where_none_runs_there_is_no_plan() -> None:
    with pytest.raises(InfeasibleError, match="none of 2 configurations runs here: no memory"):
        plan_index(problem_of((1, 2), (4, 5), top=2, failing=(0, 1), loop_ns=0))


def test_measuring_that_a_limit_or_ctrl_c_ended_is_recorded() -> None:
    cut = replace(twelve(4), top=10, cut_short=True)
    plan = plan_index(cut)
    assert (plan.provenance.limit_fired, plan.provenance.interrupted) == (True, False)
    assert check_plan(plan) == []
    stopped = Clock()
    stopped.stop.set()
    plan = plan_index(cut, clock=stopped)
    assert (plan.provenance.limit_fired, plan.provenance.interrupted) == (False, True)
    assert check_plan(plan) == []
    assert not plan_index(PROBLEM, clock=stopped).provenance.interrupted


def test_equal_problems_have_equal_plans_and_those_read_back_too() -> None:
    again = store.loads(store.dumps(PROBLEM), "problem.json", IndexProblem)
    first, second = store.dumps(plan_index(PROBLEM)), store.dumps(plan_index(again))
    assert first == second
    read = store.loads(first, "plan.json", Plan)
    assert read == small_plan()
    assert check_plan(read) == []


def test_the_caller_gets_the_plan_once() -> None:
    seen: list[Plan[IndexDecisions]] = []
    assert seen == [] != [plan_index(PROBLEM, on_plan=seen.append)] == seen


@given(seed=SEEDS)
def test_planner_checker_and_timeline_agree_with_trying_all(seed: int) -> None:
    problem = random_problem(random.Random(seed))
    plan = plan_index(problem)
    assert check(plan.decisions) == check_plan(plan) == []
    assert store.loads(store.dumps(plan), "plan.json", Plan) == plan
    ranked = sorted(_allowed(problem))
    assert (plan.decisions.time_ns, plan.decisions.chosen) == (ranked[0][0], grid()[ranked[0][3]])
    assert plan.decisions.second_ns == (ranked[1][0] if len(ranked) > 1 else None)
    assert simulate(*trace_of(plan.decisions)).makespan == plan.decisions.time_ns


def _allowed(problem: IndexProblem) -> list[tuple[int, float, int, int]]:
    """Time, prediction, place and number in the grid of every candidate that may be taken."""
    found = []
    for place, each in enumerate(problem.candidates):
        number, run = grid().index(each.configuration), each.measured
        if not problem.top:
            found.append((int(each.predicted_ns + 0.75), each.predicted_ns, place, number))
        elif run is not None and run.bytes / 16 / problem.keys_at_end <= (problem.max_memory_ratio or 10**9):
            found.append((sum(run.windows_ns), each.predicted_ns, place, number))
    return found


def test_windows_follow_one_another_on_one_core() -> None:
    tasks, resources = trace_of(small_plan().decisions)
    assert [task.duration for task in tasks] == [87, 87, 87, 89]
    assert [task.name for task in tasks][::3] == [
        "operations 1 to 10, gapped array 1/8",
        "operations 31 to 40, gapped array 1/8",
    ]
    assert [resource.name for resource in resources] == ["core"]
    (one,), _ = trace_of(unmeasured().decisions)
    assert one.duration == 301


def test_a_problem_that_is_not_sound_is_refused_in_one_line() -> None:
    with pytest.raises(InputError) as caught:
        plan_index(replace(PROBLEM, candidates=()))
    assert str(caught.value) == "problem of an index: $.candidates: found none, expected at least one"
