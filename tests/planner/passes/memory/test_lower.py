"""Schedules become programs; useless runs and stores go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, prune, store_all
from treadle.planner.passes.memory.program import Drop, EnterStage, RunBackward, RunForward
from treadle.planner.passes.memory.simulate import curve, moments, simulate


def test_store_all_of_the_chain():
    problem = cases.a(10)
    program = lower(problem, store_all(problem))
    assert program == (
        *(EnterStage(5), RunForward(0), RunForward(1), RunForward(2), RunForward(3), Drop(3)),
        *(EnterStage(4), RunBackward(0), Drop(2)),
        *(EnterStage(3), RunBackward(1), Drop(1)),
        *(EnterStage(2), RunBackward(2), Drop(0)),
        *(EnterStage(1), RunBackward(3)),
    )
    assert simulate(problem, program) == (10, 12)


def test_useless_runs_and_stores_go():
    problem = cases.a(20)
    everything = frozenset(range(4))
    again = tuple(RunForward(i) for i in range(4))
    wasteful = RecomputeSchedule((again,) * 5, (everything,) * 5, (0, 0, 0, 0))
    assert prune(problem, wasteful) == store_all(problem)


def test_a_regenerated_intermediate_drops_the_stale_output_of_its_creator():
    problem = cases.problem(
        50,
        [cases.forward(4), cases.forward(1, (0,), kind="intermediate", creator=0)],
        [cases.backward(0, 0, ((0,), 0, 1)), cases.backward(0, 0, ((1,), 0, 1))],
    )
    schedule = RecomputeSchedule(
        ((RunForward(0),), (), (RunForward(0), RunForward(1))),
        (frozenset({0}), frozenset({0}), frozenset()),
        (0, 0),
    )
    assert lower(problem, schedule) == (
        *(EnterStage(3), RunForward(0)),
        *(EnterStage(2), RunBackward(0)),
        *(EnterStage(1), Drop(0), RunForward(0), RunForward(1), Drop(0), RunBackward(1), Drop(1)),
    )
    assert prune(problem, schedule).kept == (frozenset({0}), frozenset(), frozenset())


def test_moments_of_an_in_place_run():
    problem = cases.d(20)
    program = (EnterStage(7), RunForward(0), RunForward(1, 0, True), RunForward(2), RunForward(3))
    assert [(m.activations, m.workspace) for m in moments(problem, program)] == [
        (0, 0),
        (4, 0),
        (4, 0),
        (12, 0),
        (13, 3),
    ]


@given(problems(max_nodes=6), st.data())
def test_the_curve_adds_up_to_the_peak(problem, data):
    program = lower(problem, store_all(problem))
    points = curve(problem, program)
    assert len(points) == len(program)
    assert max(sum(bytes_.values()) for _, bytes_ in points) == simulate(problem, program).peak_bytes
    assert points[-1][1]["activations"] == 0


def test_what_is_made_again_counts_apart_and_overwriting_moves_bytes_between_the_two():
    problem = cases.d(20)
    first = (EnterStage(7), RunForward(0), RunForward(1), RunForward(2), RunForward(3))
    again = (EnterStage(6), Drop(1), RunForward(1, 0, True))
    split = [(m.kept, m.recomputed) for m in moments(problem, (*first, *again))]
    sizes = [node.out_bytes for node in problem.fwd]
    assert split[4] == (sum(sizes[:4]), 0)
    assert split[6] == (sizes[0] + sizes[2] + sizes[3], 0)
    assert split[7] == (sizes[2] + sizes[3], sizes[1])
