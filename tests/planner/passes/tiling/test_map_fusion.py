"""Problems whose maps run inside other operators give the same results with fewer arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treadle.array as ta
from treadle.planner.passes.tiling.map_fusion import fused_folds, fused_maps
from treadle.planner.passes.tiling.problem import TilingProblem
from treadle.runtime.tiling.filled import filled
from treadle.runtime.tiling.functions import called


def results(problem: TilingProblem) -> list[Any]:
    dtypes = {array.id: array.dtype for array in problem.arrays}
    shapes = {array.id: array.shape for array in problem.arrays}
    values: dict[str, Any] = {}
    for node in problem.nodes:
        (name,) = node.outputs
        if node.operator in ("value", "newarray"):
            values[name] = filled(shapes[name], dtypes[name], None, node.params)
        else:
            values[name] = called(node, [values[each] for each in node.inputs], dtypes[name])
    return [values[name] for name in problem.outputs]


def words(problem: TilingProblem) -> list[str]:
    return [f"{node.outputs[0]} = {node.function} {' '.join(node.inputs)}".strip() for node in problem.nodes]


def test_maps_run_inside_the_map_that_reads_them() -> None:
    problem = ta.capture(lambda x, y: ta.exp(x * 2 + y) - ta.exp(y), np.ones(3), np.arange(3.0))
    assert words(fused_maps(problem)) == ["x = value", "y = value", "subtract1 = fused x y"]
    np.testing.assert_array_equal(results(problem), results(fused_maps(problem)))


def test_what_others_read_stays() -> None:
    def program(x: Any) -> Any:
        twice = x * 2
        return twice, twice + 1, ta.sum(twice, 0)

    problem = ta.capture(program, np.ones((3, 2)))
    assert fused_folds(fused_maps(problem)) == problem


def test_smaller_maps_stay_outside() -> None:
    """A column that is broadcast would be computed by every worker of its row."""
    problem = ta.capture(lambda x: x - ta.sqrt(ta.sum(x, 1, keepdims=True)), np.ones((3, 2)))
    assert fused_maps(problem) == problem


def test_maps_of_one_array_run_inside_folds() -> None:
    problem = ta.capture(lambda x: ta.mean(ta.square(x) + 1, 0), np.arange(6.0).reshape(3, 2))
    fused = fused_folds(fused_maps(problem))
    assert words(fused) == ["x = value", "sum1 = sum x", "divide1 = divide sum1"]
    np.testing.assert_array_equal(results(problem), results(fused))


@pytest.mark.parametrize("fuse", [fused_maps, fused_folds, lambda problem: fused_folds(fused_maps(problem))])
@settings(max_examples=15, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=12))
def test_random_programs_give_the_same(fuse: Any, steps: list[tuple[int, int, int]]) -> None:
    def program(x: Any, y: Any) -> Any:
        made = [x, y]
        for kind, one, other in steps:
            a, b = made[one % len(made)], made[other % len(made)]
            made.append(
                (a + b, a * 0.5, ta.sin(a), ta.sum(a, 0, keepdims=True), a - b, ta.max(a, 1, keepdims=True))[kind]
            )
        return made[-1], made[-2]

    problem = ta.capture(program, np.arange(12.0).reshape(4, 3), np.ones((4, 1)))
    fused = fuse(problem)
    assert len(fused.nodes) <= len(problem.nodes)
    assert list(fused.problems()) == []
    for found, expected in zip(results(fused), results(problem), strict=True):
        np.testing.assert_array_equal(found, expected)
