"""Lower bounds: never above the best there is, and as high as the oracles say."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from tests.planner.passes.swap import cases
from tests.planner.passes.swap.exhaustive import best_time
from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.swap.arrays import arrays_of
from treadle.planner.passes.swap.bound import lower_bound, sentence
from treadle.planner.passes.swap.problem import SwapProblem, SwapTensor
from treadle.planner.passes.swap.replay import replay
from treadle.planner.passes.swap.spans import plan_spans


def with_machine(problem: SwapProblem, **changes: object) -> SwapProblem:
    return replace(problem, machine=replace(problem.machine, **changes))


def test_memory_without_end_leaves_the_time_of_the_operators() -> None:
    problem = cases.figure_4_1(memory=100)
    bound = lower_bound(problem)
    assert (bound.time_ns, bound.scope) == (6, "any order")
    assert "every operator runs once" in sentence(bound)


@pytest.mark.parametrize(("into", "out", "least"), [(12, 0, 0.1), (12, 12, 0.12), (12, 6, 0.11)])
def test_copies_in_both_directions_share_the_bus(into: int, out: int, least: float) -> None:
    """O9: an input that has to come, and a result that has to go to make room, at 12 GB/s alone and 20 together."""
    problem = cases.duplex(into * 10**8, out * 10**8)
    if not out:
        assert lower_bound(problem).time_ns == 0  # a parameter that stays
    comes = SwapTensor(id="W", bytes=into * 10**8, role="input")
    tensors = tuple(comes if tensor.id == "W" else tensor for tensor in problem.tensors)
    assert lower_bound(replace(problem, tensors=tensors)).time_ns == pytest.approx(least * 1e9, rel=2e-6)


def test_a_parameter_that_cannot_stay_is_loaded_once_an_iteration() -> None:
    problem = cases.belady([1, 2, 3, 1, 2], objects=2)
    slow = with_machine(problem, in_bandwidth=cases.UNIT // 5)
    assert lower_bound(slow).time_ns >= 10  # 3 loads of 5, of which at most one can be done before the first operator


def test_an_order_that_comes_back_to_each_parameter_costs_its_loads() -> None:
    problem = cases.rnn(4, 6, memory=14)
    assert lower_bound(problem).time_ns == 24
    assert lower_bound(problem, cases.time_by_time(4, 6)).time_ns >= 2 * 24


def test_an_operator_that_does_not_fit_is_named() -> None:
    with pytest.raises(InfeasibleError, match="operator Conv2 reads and makes 4 B"):
        lower_bound(cases.figure_4_1(memory=3))


@pytest.mark.parametrize("seed", [*range(6), *range(7, 12)])  # 6 takes longer than all others together
def test_no_bound_is_above_the_optimum(seed: int) -> None:
    rng = random.Random(7000 + seed)
    problem = cases.random_problem(rng, ops=rng.randint(3, 4), slack=rng.random() * 0.6, together=(1, 1))
    best = best_time(problem)
    assert best is not None
    assert lower_bound(problem).time_ns <= best
    order = range(len(problem.ops))
    in_order = best_time(problem, order=order)
    assert in_order is not None
    assert lower_bound(problem, order).time_ns <= in_order


@pytest.mark.parametrize("seed", range(10))
def test_no_bound_is_above_a_plan(seed: int) -> None:
    """With copies that slow each other down, and more operators than can be searched."""
    rng = random.Random(8000 + seed)
    problem = cases.random_problem(rng, ops=14, slack=rng.random() * 0.6)
    arrays = arrays_of(problem)
    nodes = plan_spans(arrays, range(14), problem.arena_bytes, "bytes")
    assert nodes is not None
    found = replay(arrays, nodes).makespan_ns
    assert lower_bound(problem).time_ns <= found
    assert lower_bound(problem, range(14)).time_ns <= found


def test_fewer_moments_prove_less_and_never_something_else() -> None:
    problem = cases.rnn(4, 6, memory=14)
    order = cases.time_by_time(4, 6)
    values = [lower_bound(problem, order, moments=count).time_ns for count in (1, 6, 24)]
    assert values == sorted(values)
    assert values[0] < values[-1]
