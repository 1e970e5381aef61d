"""Plans without a solver are sound, and good on chains."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.formulation.test_checkpoint import long_chain
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.methods.heuristics import Planner, chen
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.search.attempts import MemoryOptions
from treadle.planner.passes.memory.search.rounds import search


@given(problems(max_nodes=6), st.sets(st.integers(0, 5)))
@settings(max_examples=40)
def test_every_plan_is_sound(problem, kept):
    planner = Planner.of(problem)
    schedule = planner.schedule(frozenset(kept) & planner.fastest.keys())
    peak = planner.result(schedule).peak_bytes
    decisions = decide(replace(problem, budget_bytes=max(1, peak)), schedule)
    assert check(replace(decisions, bound_peak_bytes=peak)) == []


def test_segments_of_a_long_chain_need_about_the_square_root_of_its_bytes():
    problem = cases.problem(
        30,
        cases.chain(*[1] * 100),
        [cases.backward(1, 1, ((k - 1,) if k else (), 0, 1)) for k in reversed(range(100))],
    )
    planner = Planner.of(problem)
    assert planner.result(planner.base).peak_bytes == 101
    assert min(planner.result(planner.schedule(kept)).peak_bytes for kept in chen(problem)) <= 22
    found = search(problem, MemoryOptions(method="heuristic"))
    assert found.time_ns <= 300


def test_nothing_is_recomputed_from_what_is_kept():
    schedule = Planner.of(long_chain(9, 100)).schedule(frozenset({2, 5}))
    assert schedule.kept[0] == {2, 5}
    assert {run.node for stage in schedule.runs[1:] for run in stage} == {0, 1, 3, 4, 6, 7}
    assert max(len(stage) for stage in schedule.runs[1:]) == 2
