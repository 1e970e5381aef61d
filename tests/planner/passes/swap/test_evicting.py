"""The plan that evicts everything holds wherever each single operator fits."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from tests.planner.passes.swap import cases
from tests.planner.passes.swap.plans import random_order
from treadle.planner.passes.swap.arrays import arrays_of
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.evaluate import decisions
from treadle.planner.passes.swap.evicting import evict_all
from treadle.planner.passes.swap.minimum import least_memory
from treadle.planner.passes.swap.planning import SwapOptions, SwapTask, plan_swap
from treadle.planner.passes.swap.problem import SwapProblem
from treadle.planner.passes.swap.spans import plan_spans


def at_least(problem: SwapProblem) -> SwapProblem:
    least = least_memory(problem, "offset").memory_bytes
    return replace(problem, machine=replace(problem.machine, memory_bytes=least))


def test_it_holds_in_the_least_memory() -> None:
    for seed in range(40):
        rng = random.Random(7300 + seed)
        problem = at_least(cases.random_problem(rng))
        order = random_order(rng, problem)
        plan = decisions(problem, arrays_of(problem), order, evict_all(arrays_of(problem), order), None, "offset")
        assert check(plan) == []


@pytest.mark.parametrize("faithful", [False, True])
def test_offset_always_has_a_plan(faithful: bool) -> None:
    """Tensors of other sizes would fragment the memory, whatever is evicted."""
    found = 0
    for seed in range(400):
        problem = at_least(cases.random_problem(random.Random(7400 + seed), ops=16))
        if plan_spans(arrays_of(problem), range(16), problem.arena_bytes, "offset") is not None:
            continue
        options = SwapOptions(
            allocator="offset", keep_order=True, faithful=faithful, generations=1, population=2, time_limit_s=60
        )
        assert check(plan_swap(SwapTask(problem), options=options).decisions) == []
        found += 1
        if found == 2:
            return
    raise AssertionError("no problem needs it")
