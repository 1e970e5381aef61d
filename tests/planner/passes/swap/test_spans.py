"""Memory without classes: one count of bytes, and addresses."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import pytest

from tests.planner.passes.swap import cases
from tests.planner.passes.swap.plans import reach
from treadle.planner.passes.swap.arrays import COMPUTE, IN, arrays_of
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.decisions import Resident, SwapDecisions
from treadle.planner.passes.swap.evaluate import decisions
from treadle.planner.passes.swap.exact import solve_exact
from treadle.planner.passes.swap.layout import Pool
from treadle.planner.passes.swap.problem import SwapProblem
from treadle.planner.passes.swap.replay import replay
from treadle.planner.passes.swap.spans import SPANS, plan_spans
from treadle.planner.passes.swap.two_pass import Settings, plan_pool

Span = Literal["bytes", "offset"]
ALLOCATORS: tuple[Span, ...] = ("bytes", "offset")


def plan(problem: SwapProblem, allocator: Span, settings: Settings = SPANS) -> SwapDecisions | None:
    nodes = plan_spans(arrays_of(problem), range(len(problem.ops)), problem.arena_bytes, allocator, settings)
    return (
        None
        if nodes is None
        else decisions(problem, arrays_of(problem), range(len(problem.ops)), nodes, None, allocator)
    )


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("settings", [Settings(2), Settings(0, True), Settings(2, True)])
def test_random_plans_are_safe_and_take_what_they_say(allocator: Span, settings: Settings) -> None:
    found = 0
    for seed in range(25):
        rng = random.Random(4000 + seed)
        problem = cases.random_problem(rng, slack=rng.random() * 0.7)
        decided = plan(problem, allocator, settings)
        if decided is not None:
            found += 1
            assert check(decided) == [], seed
            assert decided.peak_bytes <= problem.arena_bytes
    assert found >= (25 if allocator == "bytes" else 20)


def test_bytes_plans_whatever_fits() -> None:
    """The least memory of an operator is enough, without classes and holes."""
    for seed in range(15):
        problem = cases.random_problem(random.Random(4100 + seed), ops=8)
        least = max(sum(problem.tensors[t].bytes for t in (*op.inputs, *op.outputs)) for op in problem.ops)
        arrays = arrays_of(problem)
        assert plan_spans(arrays, range(8), least, "bytes") is not None
        assert plan_spans(arrays, range(8), least - 1, "bytes") is None


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_memory_for_all_copies_nothing_but_inputs(allocator: Span) -> None:
    problem = cases.random_problem(random.Random(4200), slack=1.0)
    arrays = arrays_of(problem)
    nodes = plan_spans(arrays, range(len(problem.ops)), int(arrays.bytes.sum()), allocator)
    assert nodes is not None
    roles = {problem.tensors[t].role for t in nodes.item[nodes.kind != COMPUTE].tolist()}
    assert roles <= {"input"}
    used = {t for op in problem.ops for t in op.inputs if problem.tensors[t].role in ("parameter", "state")}
    assert set(nodes.initial.tolist()) == {t for t in used if problem.tensors[t].bytes}


def test_equal_sizes_are_a_pool_of_one_class() -> None:
    """With unit sizes the three allocators have the same places to give."""
    problem = cases.belady([1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5], objects=3)
    arrays = arrays_of(problem)
    pooled = plan_pool(arrays, range(12), Pool((1,), (3,)), Settings(0, True))
    assert pooled is not None
    loads = (pooled.kind == IN).sum()
    for allocator in ALLOCATORS:
        nodes = plan_spans(arrays, range(12), 3, allocator, Settings(0, True))
        assert nodes is not None
        assert abs(int((nodes.kind == IN).sum()) - int(loads)) <= 1


def test_several_leave_for_one_and_no_more_than_it_takes() -> None:
    """3 + 3 bytes for a newcomer of 5; the small one, needed later than both, would not help and stays."""
    tensors = [cases.parameter("A", 3), cases.parameter("B", 3), cases.parameter("C", 1), cases.parameter("D", 6)]
    ops = [
        ("a", "A", ""),
        ("b", "B", ""),
        ("c", "C", ""),
        ("d", "D", ""),
        ("e", "A", ""),
        ("f", "B", ""),
        ("g", "C", ""),
    ]
    problem = cases._in_order(cases.built(7, tensors, ops))
    nodes = plan_spans(arrays_of(problem), range(7), 7, "bytes", Settings(0))
    assert nodes is not None
    first = int(np.flatnonzero((nodes.kind == COMPUTE) & (nodes.item == 3))[0])
    gone = {int(nodes.item[i]) for i in range(first) if nodes.kind[i] in (2, 3)}
    assert gone == {0, 1}


def test_an_initial_resident_ends_where_it_starts() -> None:
    for seed in range(20):
        rng = random.Random(4300 + seed)
        decided = plan(cases.random_problem(rng, slack=rng.random()), "offset")
        if decided is not None:
            assert decided.initial == decided.final
            assert all(isinstance(resident, Resident) for resident in decided.initial)


def test_addresses_stay_below_the_room() -> None:
    for seed in range(20):
        rng = random.Random(4400 + seed)
        problem = cases.random_problem(rng, slack=rng.random() * 0.6)
        arrays = arrays_of(problem)
        nodes = plan_spans(arrays, range(len(problem.ops)), problem.arena_bytes, "offset")
        if nodes is not None:
            decided = decisions(problem, arrays, range(len(problem.ops)), nodes, None, "offset")
            assert decided.peak_bytes <= reach(arrays, nodes) <= problem.arena_bytes


@pytest.mark.parametrize("seed", range(3))
def test_never_faster_than_the_optimum(seed: int) -> None:
    problem = cases.random_problem(random.Random(4500 + seed), ops=4, slack=0.2, together=(1, 1))
    arrays = arrays_of(problem)
    for allocator in ALLOCATORS:
        nodes = plan_spans(arrays, range(4), problem.arena_bytes, allocator)
        best = solve_exact(problem, allocator, order=range(4))
        if nodes is not None:
            assert replay(arrays, nodes).makespan_ns >= best.bound_ns


def test_a_bias_changes_who_leaves() -> None:
    """The parameter whose next use is biased to be later leaves first."""
    problem = cases.belady([1, 2, 3, 2, 1], objects=2)
    arrays = arrays_of(problem)

    def gone(bias: int) -> list[int]:
        of_use = np.zeros(len(arrays.use), np.int64)
        of_use[1] = bias
        nodes = plan_spans(arrays, range(5), 2, "bytes", Settings(0), of_use)
        assert nodes is not None
        return nodes.item[nodes.kind >= 2].tolist()

    assert gone(0) != gone(5)


def test_an_output_takes_the_bytes_freed_last_and_leaves_the_others_to_copies_in():
    tensors = [cases.activation(name) for name in ("A1", "A2", "A3")] + [cases.parameter("W")]
    ops = [("o1", "", "A1"), ("o2", "A1", "A2"), ("o3", "A2", ""), ("o4", "", "A3"), ("o5", "A3 W", "")]
    problem = cases.built(2, tensors, ops)
    nodes = plan_spans(arrays_of(problem), range(5), 2, "bytes", Settings(2))
    assert nodes is not None
    copy = int(np.flatnonzero(nodes.kind == IN)[0])
    assert [nodes.item[at] for at in nodes.after[nodes.after_ptr[copy] : nodes.after_ptr[copy + 1]]] == [1]
