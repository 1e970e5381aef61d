"""Flows of least cost against all assignments."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from treadle.planner.errors import InputError
from treadle.planner.machine.clustering import assigned
from treadle.planner.solver.min_cost_flow import min_cost_flow


def test_a_flow_takes_the_cheap_arc_up_to_its_capacity() -> None:
    arcs = np.array([[0, 1, 2, 1], [0, 1, 5, 4]])
    assert min_cost_flow(arcs, [3, -3]).tolist() == [2, 1]


def test_capacities_that_do_not_suffice_are_refused() -> None:
    with pytest.raises(InputError, match="flow of least cost: infeasible"):
        min_cost_flow(np.array([[0, 1, 2, 1]]), [3, -3])


@pytest.mark.parametrize("seed", range(12))
def test_assignments_with_least_sizes_are_the_cheapest_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    n, k, least = 6, 3, int(random.integers(1, 3))
    costs = random.integers(1, 100, size=(n, k)).astype(float)
    costs[:, 0] /= 8  # most of them prefer one group
    best = min(
        sum(costs[point, group] for point, group in enumerate(chosen))
        for chosen in product(range(k), repeat=n)
        if min(chosen.count(group) for group in range(k)) >= least
    )
    found = assigned(costs, least)
    assert np.bincount(found, minlength=k).min() >= least
    assert costs[np.arange(n), found].sum() == pytest.approx(best)
