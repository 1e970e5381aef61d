"""The hand-made peers of the memory tables are correct."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from benchmarks.memory.checkmate import checkmate
from benchmarks.memory.gist import gist_peak
from treadle.planner.passes.memory.formulation.checkpoint import formulate
from treadle.planner.passes.memory.formulation.readout import schedule_of
from treadle.planner.passes.memory.lower import lower, store_all
from treadle.planner.passes.memory.problem import VERSION, Backward, BackwardNode, Forward, ForwardNode, MemoryProblem
from treadle.planner.passes.memory.simulate import simulate
from treadle.planner.solver import Status, solve


def chain(length: int, budget: int) -> MemoryProblem:
    """Layers of one byte and one nanosecond; backward of each reads its output."""
    fwd = tuple(
        ForwardNode(op="layer", out_bytes=1, inputs=(i - 1,) if i else (), impls=(Forward(time_ns=1),))
        for i in range(length)
    )
    bwd = tuple(
        BackwardNode(op="layer", out_grad_bytes=1, live_grad_bytes=1, impls=(Backward(needs=(i,), time_ns=1),))
        for i in reversed(range(length))
    )
    return MemoryProblem(version=VERSION, budget_bytes=budget, base={}, fwd=fwd, bwd=bwd)


@pytest.mark.parametrize(("budget", "extra"), [(18, 0), (16, 2), (12, 6)])
def test_checkmate_on_a_unit_chain(budget: int, extra: int) -> None:
    """16 layers cost 32 plus recomputation; MONeT's program has the same optimum for a chain of unit layers."""
    problem = chain(16, budget)
    found = checkmate(problem, 60.0, workers=1)
    assert found.status is Status.OPTIMAL
    assert found.schedule is not None
    result = simulate(problem, lower(problem, found.schedule))
    assert result.time_ns == 32 + extra
    assert result.peak_bytes <= budget
    program = formulate(problem)
    assert simulate(problem, lower(problem, schedule_of(program, solve(program.model, gap=0.0)))).time_ns == 32 + extra


def test_checkmate_knows_when_nothing_fits() -> None:
    assert checkmate(chain(6, 2), 30.0).status is Status.INFEASIBLE


def test_gist_stores_a_relu_before_pooling_as_bits() -> None:
    """conv 4096, relu 4096, pool 1024: backward of relu reads one bit, of pool 4 bits of each element."""
    one = (Forward(time_ns=1),)
    fwd = (
        ForwardNode(op="convolution", out_bytes=4096, impls=one),
        ForwardNode(op="relu", out_bytes=4096, inputs=(0,), impls=one),
        ForwardNode(op="max_pool2d", out_bytes=1024, inputs=(1,), impls=one),
    )
    bwd = (
        BackwardNode(op="pool", out_grad_bytes=4096, live_grad_bytes=1024, impls=(Backward(needs=(2,), time_ns=1),)),
        BackwardNode(op="relu", out_grad_bytes=0, live_grad_bytes=4096, impls=(Backward(needs=(1,), time_ns=1),)),
    )
    problem = MemoryProblem(version=VERSION, budget_bytes=2**20, base={}, fwd=fwd, bwd=bwd)
    assert gist_peak(problem) == max(4096 + 4096, 128 + 4096 + 1024, 128 + 128 + 1024 + 1024 + 4096, 128 + 4096 + 4096)
    assert gist_peak(problem) < simulate(problem, lower(problem, store_all(problem))).peak_bytes
    doubled = replace(problem, fwd=(*fwd[:2], replace(fwd[2], op="linear")))
    assert gist_peak(doubled) >= gist_peak(problem)
