"""Random gradients have about the counts of a problem."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from tests.treadle.runtime.sparse.plans import decisions_of
from treadle.planner.passes.sparse.problem import SparseGradient, SparseProblem
from treadle.runtime.sparse.synthetic import fitted, index_sets, random_gradient


def problem_with(
    unions: tuple[int, ...], units: int = 10_000, devices: int = 1, form: str = "coo"
) -> tuple[SparseProblem, SparseGradient]:
    problem = decisions_of(("table", "zen", form, units, 2), machines=len(unions), devices=devices).problem
    gradient = replace(problem.gradients[0], unions=unions, occurrences=2 * unions[0])
    return replace(problem, gradients=(gradient,)), gradient


@pytest.mark.parametrize(
    "unions",
    [
        (500,),
        (500, 500, 500),
        (500, 1000),
        (500, 650),
        (500, 1000, 1500, 2000),
        (500, 700, 850, 950),
        (4000, 6400, 7840, 8704),
        (10_000, 10_000),
        (0, 0, 0),
    ],
)
def test_unions_are_those_that_were_asked_for(unions: tuple[int, ...]) -> None:
    problem, gradient = problem_with(unions)
    sets = index_sets(problem, gradient, 0)
    found = [len(reduce(np.union1d, sets[: count + 1])) for count in range(len(unions))]
    assert found == pytest.approx(unions, rel=0.1, abs=20)
    assert found[0] == pytest.approx(unions[0], abs=1)


def test_units_of_all_and_of_some_are_kept_apart() -> None:
    model = fitted((300, 380, 444, 495), 10_000)
    assert model.chance == pytest.approx(0.2, abs=0.02)
    assert model.somewhere == pytest.approx(500, rel=0.1)
    assert model.everywhere == pytest.approx(200, rel=0.1)


def test_ranks_of_a_node_bring_the_units_of_its_shards() -> None:
    problem, gradient = problem_with((50, 80), units=1001, devices=2)
    for node in range(2):
        both = [random_gradient(problem, gradient, 2 * node + local) for local in range(2)]
        assert [each._nnz() for each in both] == [100, 100]
        total = torch.zeros(1001, 2)
        for each in both:
            total += each.to_dense()
        expected = [start + index_sets(problem, gradient, shard)[node] for shard, start in enumerate((0, 500))]
        assert np.array_equal(np.flatnonzero(total.any(1).numpy()), np.concatenate(expected))
