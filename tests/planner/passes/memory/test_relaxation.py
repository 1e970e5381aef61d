"""Lower bounds from windows of stages: never above the exact optimum, in any order of recomputation."""

from __future__ import annotations

import heapq
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from scipy.optimize import Bounds, LinearConstraint, milp

from tests.planner.passes.memory import cases
from tests.planner.passes.memory.dynamic import optimum
from tests.planner.passes.memory.methods.test_checkpoints import layers
from tests.planner.passes.memory.networks import residual_network
from tests.planner.passes.memory.strategies import problems
from treadle.planner.errors import InfeasibleError
from treadle.planner.passes.memory.bound import least_bytes, least_time, sentence
from treadle.planner.passes.memory.lower import lower, store_all
from treadle.planner.passes.memory.methods.limits import SolveLimits, cut
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.relaxation import lower_bound, priced_bound, relax
from treadle.planner.passes.memory.search.attempts import MemoryOptions
from treadle.planner.passes.memory.search.rounds import BudgetTooSmall, search
from treadle.planner.passes.memory.simulate import simulate
from treadle.planner.search.bound import Argument
from treadle.planner.solver import Model


def least(model: Model) -> float | None:
    """The optimum by HiGHS in this process; None where there is no solution."""
    form = model.matrix_form()
    result = milp(
        form.cost,
        integrality=form.integer.astype(np.int64),
        bounds=Bounds(form.lower, form.upper),
        constraints=LinearConstraint(form.matrix, form.row_lower, form.row_upper),
    )
    assert result.status in (0, 2)
    return result.fun if result.status == 0 else None


def optimum_in_any_order(problem: MemoryProblem) -> int | None:
    """Least time of any program that the checker accepts, by Dijkstra's algorithm over the states of the device.

    A state is (stage, place, live, ran): the place counts forward nodes in stage 0 and is -1 after the backward node.
    """
    n, last = len(problem.fwd), len(problem.bwd)
    room = problem.budget_bytes - problem.base_bytes
    inputs = [sum(1 << j for j in set(node.inputs)) for node in problem.fwd]
    weight = [sum(problem.fwd[i].out_bytes for i in range(n) if live >> i & 1) for live in range(1 << n)]
    start = (0, 0, 0, 0)
    known = {start: 0}
    heap = [(0, start)]

    def reach(time: int, state: tuple[int, int, int, int]) -> None:
        if time < known.get(state, time + 1):
            known[state] = time
            heapq.heappush(heap, (time, state))

    while heap:
        time, state = heapq.heappop(heap)
        stage, place, live, ran = state
        if time > known[state]:
            continue
        if stage > last:
            return time
        back = problem.bwd[stage - 1] if stage else None
        resident = back.live_grad_bytes if back else 0
        for i in range(n):
            if live >> i & 1:
                reach(time, (stage, place, live & ~(1 << i), ran))
        if (stage == 0 and place == n) or place < 0:
            if stage == last:
                reach(time, (last + 1, 0, 0, 0))
            elif problem.bwd[stage].live_grad_bytes + weight[live] <= room:
                reach(time, (stage + 1, 0, live, 0))
            continue
        for i in range(place, place + 1) if stage == 0 else range(n):
            node = problem.fwd[i]
            after = place + 1 if stage == 0 else 0
            if node.kind != "op" and stage == 0:
                reach(time, (0, after, live, ran))
            created = node.creator is None or ran >> node.creator & 1
            if live >> i & 1 or inputs[i] & ~live or not created or (stage and not node.recomputable):
                continue
            in_place = [] if node.inplace_of is None else [(1 << node.inplace_of, node.inplace_saves_ns)]
            for gone, saved in [(0, 0), *in_place]:
                now = (live | 1 << i) & ~gone
                for impl in node.impls:
                    if resident + weight[now] + impl.workspace(stage > 0) <= room:
                        reach(time + impl.time(stage > 0) - saved, (stage, after, now, ran | 1 << i))
        for impl in back.impls if back else ():
            made = impl.workspace_bytes + (0 if impl.grad_inplace else back.out_grad_bytes)
            if all(live >> j & 1 for j in impl.needs) and resident + weight[live] + made <= room:
                reach(time + impl.time_ns, (stage, -1, live, 0))
    return None


@given(problems())
@settings(max_examples=60)
def test_no_plan_in_any_order_is_below_the_bound(problem):
    best, ordered = optimum_in_any_order(problem), optimum(problem)
    assert ordered is None or (best is not None and best <= ordered)
    for count in sorted({1, 2, len(problem.bwd)}):
        relaxation = relax(problem, cut(problem, count))
        found = least(relaxation.model)
        if best is not None:
            assert found is not None
            assert least_time(problem) - 1e-6 <= found * relaxation.time_unit <= best + 1e-6


@given(problems())
@settings(max_examples=15)
def test_no_plan_in_any_order_is_below_the_linear_program(problem):
    best, bound = optimum_in_any_order(problem), priced_bound(problem)
    assert best is None or (bound is not None and bound <= best)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", ["2/10", "5/10"])
def test_no_plan_of_repeated_blocks_is_below_the_linear_program(seed, share):
    problem = residual_network(2, seed)
    most, least = simulate(problem, lower(problem, store_all(problem))).peak_bytes, least_bytes(problem)
    problem = replace(problem, budget_bytes=least + int(Fraction(share) * (most - least)))
    try:
        best = search(problem, MemoryOptions(gap=0.0, time_limit_s=None))
    except BudgetTooSmall:
        return
    assert best.bound.time_ns == best.time_ns
    bound = priced_bound(problem)
    assert bound is not None
    assert least_time(problem) <= bound <= best.time_ns


def test_the_linear_program_comes_first_and_nearly_says_what_the_solver_proves_of_repeated_blocks():
    problem = layers(20)
    problem = replace(problem, budget_bytes=least_bytes(problem) + 60)
    reported = []
    last = lower_bound(problem, SolveLimits(windows=1, nodes=100), on_bound=reported.append)
    assert reported[0].argument == Argument("priced")
    assert reported[0].time_ns == priced_bound(problem)
    assert reported[0].time_ns > 1.1 * least_time(problem)
    assert reported[-1] == last
    assert last.time_ns <= 1.01 * reported[0].time_ns


@pytest.mark.parametrize(
    ("case", "budget", "one", "every", "best"),
    [(cases.a, 8, 13, 13, 13), (cases.a, 6, 14, 15, 15), (cases.b, 8, 17, 17, 17), (cases.f, 13, 8, 8, 8)],
)
def test_more_windows_close_in_on_the_optimum(case, budget, one, every, best):
    problem = case(budget)
    assert optimum(problem) == best
    bounds = [lower_bound(problem, SolveLimits(windows=count)).time_ns for count in (1, len(problem.bwd))]
    assert bounds == [one, every]


def test_a_budget_without_a_plan_is_told_apart():
    with pytest.raises(InfeasibleError, match="cannot be recomputed within the budget, in any order"):
        lower_bound(cases.a(5))


def test_a_known_plan_ends_the_search_when_the_bound_meets_it():
    problem = cases.a(12)
    whole = store_all(problem)
    bound = lower_bound(problem, known=whole)
    assert bound.time_ns == simulate(problem, lower(problem, whole)).time_ns
    assert sentence(bound).startswith("every forward and every backward operator")
