"""The exact model: the oracles' optima, an exhaustive search, and plans that hold."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from tests.planner.passes.swap import cases
from tests.planner.passes.swap.exhaustive import best_time, pools
from treadle.planner.errors import InfeasibleError, InputError
from treadle.planner.passes.swap.arrays import arrays_of
from treadle.planner.passes.swap.check import check
from treadle.planner.passes.swap.decisions import Allocator, SwapDecisions
from treadle.planner.passes.swap.evaluate import decisions, pinned_bytes
from treadle.planner.passes.swap.exact import Exact, solve_exact
from treadle.planner.passes.swap.layout import Pool
from treadle.planner.passes.swap.problem import SwapProblem, SwapTensor

COARSE, FINE, SIX, FOUR = Pool((1, 1), (5,)), Pool((1, 2), (8, 1)), Pool((1, 2), (6, 2)), Pool((1, 2), (4, 3))
ORDERS = (cases.LEFT, (0, 2, 1, 3, 4, 5), (0, 2, 3, 1, 4, 5), cases.RIGHT)


def plan_of(problem: SwapProblem, found: Exact, allocator: Allocator) -> SwapDecisions:
    assert found.nodes is not None
    return decisions(problem, arrays_of(problem), found.order, found.nodes, found.pool, allocator)


@pytest.mark.parametrize(
    ("order", "times"), zip(ORDERS, [(6, 7, 6, 6), (7, 7, 6, 7), (7, 6, 6, 7), (7, 6, 6, 7)], strict=True)
)
def test_the_sixteen_best_makespans_of_figure_4_1(order: tuple[int, ...], times: tuple[int, ...]) -> None:
    """O1: four orders, four pools, from an empty device."""
    problem = cases.figure_4_1()
    for pool, time in zip((COARSE, FINE, SIX, FOUR), times, strict=True):
        found = solve_exact(problem, order=order, pool=pool, initial=())
        assert (found.time_ns, found.optimal) == (time, True)
        proved = "this order" if time == 6 else "this order, this allocator, no early write-back"
        assert found.scope == proved, "beyond the linear program only the exact search proves"
        assert check(plan_of(problem, found, "pool")) == []


@pytest.mark.parametrize(
    ("order", "pool", "time"),
    [
        (cases.LEFT, Pool((1, 2), (3, 1)), 9),
        (cases.LEFT, Pool((1, 1), (3,)), 11),
        (cases.RIGHT, Pool((1, 2), (3, 1)), 10),
        (cases.RIGHT, Pool((1, 1), (3,)), 12),
    ],
)
def test_the_best_makespans_at_the_least_memory(order: tuple[int, ...], pool: Pool, time: int) -> None:
    """O2."""
    found = solve_exact(cases.figure_4_1(memory=6), order=order, pool=pool, initial=())
    assert (found.time_ns, found.optimal) == (time, True)


def test_too_few_objects_are_proved_infeasible() -> None:
    """O2: 2 objects of 1 and 1 of 2."""
    found = solve_exact(cases.figure_4_1(memory=6), order=cases.LEFT, pool=Pool((1, 2), (2, 1)), initial=())
    assert found.infeasible
    assert found.nodes is None


def test_order_and_pool_are_found_together() -> None:
    """O1: 6 needs the right pool for the order; the model finds both."""
    problem = cases.figure_4_1()
    found = solve_exact(problem, initial=())
    assert (found.time_ns, found.optimal, found.scope) == (6, True, "any order")
    assert check(plan_of(problem, found, "pool")) == []


def test_the_steady_state_of_o6b_keeps_w3() -> None:
    assert solve_exact(cases.two_pass_b(), pool=Pool((1,), (3,))).time_ns == 4


@pytest.mark.parametrize("seed", range(7))
def test_equal_to_exhaustive_search(seed: int) -> None:
    rng = random.Random(9000 + seed)
    problem = cases.random_problem(rng, ops=3, slack=rng.random() * 0.5, together=(1, 1))
    found = solve_exact(problem, "bytes")
    assert found.optimal
    assert found.time_ns == best_time(problem)
    assert check(plan_of(problem, found, "bytes")) == []


@pytest.mark.parametrize("seed", range(3))
def test_equal_to_exhaustive_search_over_all_pools(seed: int) -> None:
    rng = random.Random(9100 + seed)
    problem = cases.random_problem(rng, ops=3, slack=rng.random() * 0.5, together=(1, 1))
    best = min(time for pool in pools(problem) if (time := best_time(problem, pool)) is not None)
    found = solve_exact(problem)
    assert found.optimal
    assert found.time_ns == best
    assert check(plan_of(problem, found, "pool")) == []


@pytest.mark.parametrize("allocator", ["pool", "offset", "bytes"])
def test_copies_that_slow_each_other_down(allocator: Allocator) -> None:
    """O9: a copy in each direction at the same time."""
    problem = cases.duplex()
    found = solve_exact(problem, allocator, initial=())
    assert found.time_ns is not None
    assert found.bound_ns <= found.time_ns
    assert check(plan_of(problem, found, allocator)) == []


def test_an_update_may_leave_at_the_start_of_the_next_iteration() -> None:
    """Copied out while the input is copied in: 42; 52 if every residency had to have a user."""
    tensors = [
        cases.parameter("W", 8),
        SwapTensor(id="X", bytes=8, role="input"),
        cases.activation("A", 8),
        cases.activation("K", 8, kept=True),
    ]
    ops = [("make", "", "A"), ("mix", "X A", "K"), ("update", "W X K", "", "W")]
    problem = cases.built(30, tensors, ops)
    times = tuple(replace(op, time_ns=time) for op, time in zip(problem.ops, (1, 0, 6), strict=True))
    machine = replace(problem.machine, in_bandwidth=cases.UNIT // 2, copy_ns=2)
    problem = replace(problem, machine=machine, ops=times)
    found = solve_exact(problem, "bytes")
    assert (found.time_ns, found.optimal) == (42, True)
    assert found.time_ns == best_time(problem)
    assert check(plan_of(problem, found, "bytes")) == []


@pytest.mark.slow
def test_tensors_that_are_copied_fit_into_the_host() -> None:
    """With a byte less than the best plan pins: another plan that keeps to it, no faster, or a proof of none."""
    kept = 0
    for seed in range(6):
        problem = cases.random_problem(random.Random(9250 + seed), ops=4, slack=0.3, together=(1, 1))
        free = solve_exact(problem, "bytes")
        assert free.nodes is not None
        assert free.time_ns is not None
        needed = pinned_bytes(arrays_of(problem), free.nodes)
        tight = replace(problem, machine=replace(problem.machine, host_bytes=max(0, needed - 1)))
        found = solve_exact(tight, "bytes")
        assert (found.nodes is None) == found.infeasible
        if found.nodes is not None and found.time_ns is not None:
            kept += 1
            assert check(plan_of(tight, found, "bytes")) == [], seed
            assert found.time_ns >= free.time_ns
        exact = replace(problem, machine=replace(problem.machine, host_bytes=needed))
        assert solve_exact(exact, "bytes").time_ns == free.time_ns
    assert kept


def test_inputs_need_a_place_on_the_host() -> None:
    tensors = [SwapTensor(id="X", bytes=8, role="input"), cases.activation("A", 8)]
    problem = cases.built(30, tensors, [("make", "X", "A")])
    for limit, possible in ((7, False), (8, True)):
        found = solve_exact(replace(problem, machine=replace(problem.machine, host_bytes=limit)), "bytes")
        assert (found.time_ns is not None) == possible
        assert found.infeasible == (not possible)


@pytest.mark.parametrize("allocator", ["pool", "offset", "bytes"])
def test_inputs_that_are_kept_leave_when_they_are_no_longer_read(allocator: Allocator) -> None:
    tensors = [SwapTensor(id="X", bytes=2, role="input", kept=True), cases.activation("A", 2)]
    found = solve_exact(cases.built(2, tensors, [("read", "X", ""), ("make", "", "A")]), allocator)
    assert found.optimal
    assert check(plan_of(cases.built(2, tensors, [("read", "X", ""), ("make", "", "A")]), found, allocator)) == []


def test_more_freedom_is_never_slower() -> None:
    problem = cases.random_problem(random.Random(9200), ops=4, slack=0.2, together=(1, 1))
    times = {allocator: solve_exact(problem, allocator).time_ns for allocator in ("bytes", "offset", "pool")}
    assert all(time is not None for time in times.values())
    assert times["bytes"] <= min(times["offset"], times["pool"])  # type: ignore[operator, type-var]


def test_nothing_below_a_time_that_is_the_optimum() -> None:
    problem = cases.figure_4_1()
    found = solve_exact(problem, order=cases.LEFT, pool=FINE, initial=(), below_ns=7)
    assert (found.nodes, found.bound_ns, found.infeasible) == (None, 7, False)


def test_errors_say_what_was_found() -> None:
    with pytest.raises(InfeasibleError, match="Conv2"):
        solve_exact(cases.figure_4_1(memory=3))
    tensors = [cases.parameter(f"W{n}", n) for n in range(1, 10)]
    with pytest.raises(InputError, match="9 sizes of tensors, expected at most 8"):
        solve_exact(cases.built(45, tensors, [(f"o{n}", f"W{n}", "") for n in range(1, 10)]))


def test_equal_inputs_give_equal_plans() -> None:
    problem = cases.random_problem(random.Random(9300), ops=4, slack=0.2, together=(1, 1))
    assert plan_of(problem, solve_exact(problem), "pool") == plan_of(problem, solve_exact(problem), "pool")
