"""Near runs: those that take least time up to what a backward node reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.strategies import problems
from treadle.planner.passes.memory.formulation.useful import makers
from treadle.planner.passes.memory.methods.near import nearest_runs
from treadle.planner.passes.memory.methods.restricted import every_choice, useful
from treadle.planner.passes.memory.problem import MemoryProblem


def far(problem: MemoryProblem, t: int) -> dict[int, int]:
    """For each node that stage t may recompute, the least time from its run to what the backward node reads."""
    time = [min(impl.time(True) for impl in node.impls) for node in problem.fwd]
    needs = {i for way in every_choice(problem)[t - 1] for i in problem.bwd[t - 1].impls[way].needs}
    found: dict[int, int] = {}
    todo = [(i, 0) for i in needs]
    while todo:
        i, rest = todo.pop()
        if problem.fwd[i].recomputable and rest + time[i] < found.get(i, rest + time[i] + 1):
            found[i] = rest + time[i]
            todo += [(j, found[i]) for j in makers(problem.fwd[i])]
    return found


@given(problems(), st.integers(0, 30))
def test_no_other_run_is_nearer(problem, count):
    near = nearest_runs(problem, every_choice(problem), count)
    stages = range(1, len(problem.bwd) + 1)
    every = {(t, i): time for t in stages for i, time in far(problem, t).items()}
    taken = [every.pop((t, i)) for t, nodes in enumerate(near) for i in nodes]
    assert len(taken) == min(count, len(taken) + len(every))
    assert not taken or max(taken) <= min(every.values(), default=max(taken))


@given(problems())
def test_near_runs_are_useful_ones(problem):
    near = nearest_runs(problem, every_choice(problem), 1000)
    assert all(some <= good for some, good in zip(near, useful(problem), strict=True))


def test_a_chain_is_run_from_its_end():
    assert nearest_runs(cases.a(6), [(0,)] * 4, 3) == [frozenset(nodes) for nodes in ((), (2,), (1,), (0,), ())]
    assert nearest_runs(cases.a(6), [(0,)] * 4, 6) == [frozenset(nodes) for nodes in ((), (0, 1, 2), (0, 1), (0,), ())]


def test_what_runs_once_ends_a_chain():
    problem = cases.a(6)
    fwd = (*problem.fwd[:1], replace(problem.fwd[1], recomputable=False), *problem.fwd[2:])
    near = nearest_runs(replace(problem, fwd=fwd), [(0,)] * 4, 10)
    assert near == [frozenset(nodes) for nodes in ((), (2,), (), (0,), ())]
