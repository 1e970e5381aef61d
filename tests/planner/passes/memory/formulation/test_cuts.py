"""Inequalities over windows of stages cut off fractional plans and no plan."""

from __future__ import annotations

import msgspec
import pytest

from tests.oracles.exact_memory import optima
from tests.planner.passes.memory import cases
from tests.planner.passes.memory.instances import instance
from treadle.planner.passes.memory.formulation.checkpoint import formulate
from treadle.planner.passes.memory.formulation.cuts import windows
from treadle.planner.passes.memory.formulation.switches import Switches
from treadle.planner.passes.memory.formulation.tables import Formulation
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.solver import solve


def relaxed(program: Formulation) -> float | None:
    """Optimum of the linear relaxation, None if it is infeasible."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    form = program.model.matrix_form()
    rows = LinearConstraint(form.matrix, form.row_lower, form.row_upper)
    result = milp(form.cost, bounds=Bounds(form.lower, form.upper), constraints=rows)
    return None if result.status == 2 else result.fun + form.offset


def both(problem: MemoryProblem) -> tuple[float, float]:
    plain, cut = (relaxed(formulate(problem, switches=Switches(cuts=cuts))) for cuts in (False, True))
    assert plain is not None
    assert cut is not None
    return plain, cut


def blocks(count: int, budget: int) -> MemoryProblem:
    """Convolution, normalisation, activation, over and over; backward reads activations and convolutions' results."""
    bwd = []
    for first in reversed(range(0, 3 * count, 3)):
        bwd.append(cases.backward(4, 4, ((first,), 0, 2)))
        bwd.append(cases.backward(4, 4, ((first - 1,) if first else (), 0, 20)))
    return cases.problem(budget, cases.chain(*[4] * 3 * count, times=(10, 1, 1) * count), bwd)


@pytest.mark.parametrize(("budget", "least"), [(67, 350), (50, 358), (33, 398)])
def test_recomputing_little_by_little_is_cut_off(budget, least):
    problem = blocks(10, budget)
    plain, cut = both(problem)
    assert plain < 0.99 * least
    assert cut == pytest.approx(least)
    assert solve(formulate(problem).model, backend="highs").objective == least


@pytest.mark.parametrize("seed", range(40))
def test_the_relaxation_stays_below_the_optimum(seed):
    problem = instance(seed)
    best, _ = optima(msgspec.to_builtins(problem))
    if best is not None:
        plain, cut = both(problem)
        assert plain - 1e-6 <= cut <= best + 1e-6


def test_windows_begin_at_shares_of_the_stages():
    assert windows(10, 20) == [5, 10, 15, 20]
    assert windows(10, 2) == [1, 2]
    assert windows(300, 200) == [200]
