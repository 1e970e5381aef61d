"""Linear relaxations: bounds by weak duality, scaled first-order solves, what is proved infeasible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from treadle.planner.solver import Model
from treadle.planner.solver.linear import dual_bound, relax

SOLVERS = ("highs", "pdlp")


def knapsack() -> Model:
    """max 3a + 2b + 2c in units of a thousand, 2a + b + 2c <= 3: the relaxation takes a, b and nothing of c."""
    model = Model("knapsack")
    a, b, c = (model.bool_var() for _ in range(3))
    used = model.continuous(0, 5e6)
    model.add_linear([(a, 2e6), (b, 1e6), (c, 2e6), (used, -1)], ub=0)
    model.add_linear([(used, 1)], ub=3.5e6)
    model.minimize([(a, -3000), (b, -2000), (c, -2000)], offset=10_000)
    return model


@pytest.mark.parametrize("solver", SOLVERS)
def test_optimum_and_bound_meet(solver):
    found = relax(knapsack(), solver=solver, tolerance=1e-6)
    assert found.bound == pytest.approx(4500, rel=1e-3)
    assert found.bound <= 4500 + 1e-6
    assert found.values[:3] == pytest.approx([1, 1, 0.25], abs=1e-2)
    assert not found.limit_fired


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_empty_relaxation_is_proved_infeasible(solver):
    model = knapsack()
    model.add_linear([(0, 1), (1, 1)], lb=3)
    found = relax(model, solver=solver)
    assert found.infeasible
    assert found.values == []


def test_few_iterations_still_give_a_bound_that_holds():
    found = relax(knapsack(), solver="pdlp", iterations=1, tolerance=1e-9)
    assert found.bound is None or found.bound <= 4500 + 1e-6


numbers = st.integers(-4, 4)


@given(
    st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=4),
    st.lists(numbers, min_size=3, max_size=3),
    st.lists(st.integers(-3, 8), min_size=4, max_size=4),
    st.lists(st.floats(-3, 3), min_size=4, max_size=4),
)
@settings(max_examples=200)
def test_every_dual_vector_gives_a_bound(rows, cost, sides, duals):
    model = Model()
    for _ in range(3):
        model.continuous(0, 2)
    for row, side in zip(rows, sides, strict=False):
        model.add_linear(enumerate(row), ub=side)
    model.minimize(enumerate(cost))
    exact = linprog(cost, A_ub=np.array(rows), b_ub=sides[: len(rows)], bounds=[(0, 2)] * 3)
    if exact.success:
        assert dual_bound(model.matrix_form(), np.array(duals[: len(rows)])) <= exact.fun + 1e-7
