"""Faster convolutions for plans that could not choose them keep these plans sound."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from benchmarks.memory.convolutions import post_optimise
from tests.planner.passes.memory import cases
from tests.planner.passes.memory.formulation.test_checkpoint import solved
from tests.planner.passes.memory.strategies import problems
from tests.planner.passes.memory.test_variants import of_family
from treadle.planner.passes.memory.check import check
from treadle.planner.passes.memory.lower import RecomputeSchedule, store_all
from treadle.planner.passes.memory.planning import decide
from treadle.planner.passes.memory.problem import Backward, BackwardNode, Forward, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.program import RunForward
from treadle.planner.passes.memory.simulate import simulated
from treadle.planner.passes.memory.variants import VARIANTS, restrict


def case_f(budget: int) -> MemoryProblem:
    whole = cases.f(budget)
    slow, fast = whole.fwd[2].impls
    return replace(whole, fwd=(*whole.fwd[:2], replace(whole.fwd[2], impls=(slow, of_family(fast, "conv")))))


def noop_plan(budget: int, keep_first: bool) -> RecomputeSchedule:
    """A plan of fixture F that stores x_1 for the backward pass, or recomputes it before it is read."""
    run = [RunForward(i) for i in range(3)]
    again = () if keep_first else (run[0],)
    kept = frozenset({0, 1} if keep_first else {1})
    rest = frozenset({0} if keep_first else ())
    return RecomputeSchedule((tuple(run), (), again, ()), (kept, rest, frozenset(), frozenset()), (0, 0, 0))


@pytest.mark.parametrize(
    ("budget", "keep_first", "before", "after"), [(12, False, 16, 8), (13, True, 15, 15), (14, True, 15, 7)]
)
def test_greedy_convolutions_of_fixture_f(budget, keep_first, before, after):
    """At 13 the stored x_1 leaves 4 bytes, and the fast convolution wants 5."""
    whole = restrict(case_f(budget), VARIANTS["conv"])
    plan = noop_plan(budget, keep_first)
    assert simulated(whole, plan).time_ns == before == solved(restrict(case_f(budget), VARIANTS["noop"]))
    faster = post_optimise(whole, plan)
    assert simulated(whole, faster).time_ns == after
    assert check(decide(whole, faster)) == []


def test_backward_convolutions_keep_what_they_read_and_write():
    ways = (
        Backward(needs=(0,), time_ns=9),
        Backward(name="fits", family="conv", needs=(0,), time_ns=5, workspace_bytes=8),
        Backward(name="large", family="conv", needs=(0,), time_ns=1, workspace_bytes=9),
        Backward(name="other", family="conv", needs=(), time_ns=1),
        Backward(name="inplace", family="conv", needs=(0,), time_ns=1, grad_inplace=True),
        Backward(name="mask", family="int", needs=(0,), time_ns=1),
    )
    problem = MemoryProblem(
        version=1,
        budget_bytes=100 + 16 + 8 + 4 + 8,
        base={"parameters": 100},
        fwd=(ForwardNode(op="f", out_bytes=16),),
        bwd=(BackwardNode(op="b", live_grad_bytes=8, out_grad_bytes=4, impls=ways),),
    )
    plan = RecomputeSchedule(((RunForward(0),), ()), (frozenset({0}), frozenset()), (0,))
    assert post_optimise(problem, plan).backward == (1,)


def test_a_repeated_convolution_is_priced_as_one():
    ways = (
        Forward(time_ns=5, recompute_time_ns=9),
        Forward(name="c", family="conv", time_ns=7, recompute_time_ns=3, recompute_workspace_bytes=2),
    )
    bwd = tuple(BackwardNode(op="b", live_grad_bytes=1, out_grad_bytes=1, impls=(Backward(needs=(0,)),)) for _ in "12")
    problem = MemoryProblem(
        version=1, budget_bytes=6, base={}, fwd=(ForwardNode(op="f", out_bytes=3, impls=ways),), bwd=bwd
    )
    runs = ((RunForward(0),), (RunForward(0),), (RunForward(0),))
    plan = RecomputeSchedule(runs, (frozenset(), frozenset(), frozenset()), (0, 0))
    assert [[run.impl for run in stage] for stage in post_optimise(problem, plan).runs] == [[0], [1], [1]]
    tight = post_optimise(replace(problem, budget_bytes=5), plan)
    assert [[run.impl for run in stage] for stage in tight.runs] == [[0], [0], [0]]


@given(problems())
@settings(max_examples=40)
def test_fast_convolutions_never_break_a_plan(problem):
    """With all other implementations that read the same as algorithms, a plan stays sound and is no slower."""

    def algorithms(impls):
        return tuple(replace(impl, family="conv" if way else "") for way, impl in enumerate(impls))

    fwd = tuple(replace(node, impls=algorithms(node.impls)) for node in problem.fwd)
    bwd = tuple(
        replace(node, impls=algorithms([impl for impl in node.impls if impl.needs == node.impls[0].needs]))
        for node in problem.bwd
    )
    whole = restrict(replace(problem, fwd=fwd, bwd=bwd), VARIANTS["conv"])
    plan = store_all(restrict(whole, VARIANTS["noop"]))
    before = simulated(whole, plan)
    whole = replace(whole, budget_bytes=max(problem.budget_bytes, before.peak_bytes))
    after = post_optimise(whole, plan)
    assert check(decide(whole, after)) == []
    assert simulated(whole, after).time_ns <= before.time_ns
    assert after.kept == plan.kept
