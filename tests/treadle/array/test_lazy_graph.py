"""When lazy arrays are evaluated, what a captured program becomes, and what is refused, by name and line."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle.array as ta
from tests.treadle.array.user_functions import counts, halved, longest
from treadle.array import forcing
from treadle.planner.errors import InputError
from treadle.runtime.tiling.filled import filled
from treadle.runtime.tiling.functions import called


def words(problem: Any) -> list[str]:
    return [
        f"{node.outputs[0]} = {node.operator} {node.function} {' '.join(node.inputs)}".strip() for node in problem.nodes
    ]


# Evaluation


@pytest.mark.parametrize("force", [bool, float, int, str, repr, np.asarray, lambda x: f"{x:.1f}", lambda x: x.numpy()])
def test_a_value_is_computed_where_it_is_needed(force: Any) -> None:
    x = ta.sum(ta.ones((3, 3)) @ ta.ones((3, 3)))
    assert x.node.value is None
    force(x)
    assert x.node.value == 27


def test_shapes_dtypes_and_lengths_need_no_values() -> None:
    x = (ta.ones((4, 3), dtype="float32") @ ta.ones((3, 2)))[1:, None].T
    assert (x.shape, x.dtype, len(x), x.size, x.ndim) == ((2, 1, 3), np.float64, 2, 6, 3)
    assert x.node.value is None


def test_several_arrays_are_evaluated_together() -> None:
    ran = []

    def noted(tile: Any) -> Any:
        ran.append(tile.shape)
        return tile + 1

    shared = ta.map_tiles(noted, ta.zeros(3), dtype=float)
    one, other = shared * 2, shared * 3
    ta.evaluate(one, other)
    assert ran == [(3,)]
    assert (one.tolist(), other.tolist()) == ([2, 2, 2], [3, 3, 3])


def test_a_graph_at_its_limit_is_evaluated() -> None:
    forcing.values_of([ta.zeros(1).node])
    with ta.using(limit=10):
        x = ta.ones(2)
        for _ in range(12):
            x = x + 1
    assert len(list(forcing.in_order([x.node], lambda node: node.value is not None))) < 10
    assert x.tolist() == [13, 13]


def test_a_loop_of_thousands_of_operations_is_evaluated() -> None:
    x = ta.zeros(2)
    for _ in range(5000):
        x = x + 1
    assert x.tolist() == [5000, 5000]


@pytest.mark.parametrize("cache", [True, False])
def test_the_cache_keeps_what_has_a_name(cache: bool) -> None:
    with ta.using(cache=cache):
        named = ta.ones(3) + 1
        result = (named * 2) ** 2
        assert result.tolist() == [16, 16, 16]
        assert (named.node.value is not None) == cache
        assert named.tolist() == [2, 2, 2]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_share_what_has_been_evaluated(copied: Any) -> None:
    x = ta.ones(3) + 1
    other = copied(x)
    assert other.tolist() == [2, 2, 2]
    assert x.node.value is not None
    del other
    assert x.node.handles == 1


# Capture


def test_a_loop_with_a_fixed_count_is_unrolled() -> None:
    def power(x: Any, y: Any) -> Any:
        for _ in range(3):
            y = x @ y
        return y / ta.norm(y)

    problem = ta.capture(power, np.ones((3, 4)) @ np.ones((4, 3)), ta.ones((3,)))
    assert words(problem) == [
        "x = value value",
        "y = newarray ones",
        "matmul1 = join_update matmul x y",
        "matmul2 = join_update matmul x matmul1",
        "matmul3 = join_update matmul x matmul2",
        "multiply1 = map multiply matmul3 matmul3",
        "sum1 = fold sum multiply1",
        "sqrt1 = map sqrt sum1",
        "divide1 = map divide matmul3 sqrt1",
    ]
    assert list(problem.problems()) == []
    assert problem.outputs == ("divide1",)


def test_what_was_evaluated_before_is_a_value() -> None:
    x = ta.ones((2, 2)) + 1
    x.numpy()
    assert words(ta.capture(lambda: x * 2)) == ["value1 = value value", "multiply1 = map multiply value1"]


def test_control_flow_is_followed_and_its_graph_stays() -> None:
    def halve(x: Any) -> Any:
        while ta.max(x) > 1:
            x = x / 2
        return x

    problem = ta.capture(halve, np.array([4.0, 2.0]))
    assert words(problem) == ["x = value value", "divide1 = map divide x", "divide2 = map divide divide1"]


def test_a_product_of_matrices_joins_rows_or_sums_parts() -> None:
    def product(x: Any, y: Any) -> Any:
        return x @ y

    tall = ta.capture(product, ta.ones((8, 4)), ta.ones((4, 2))).nodes[-1]
    wide = ta.capture(product, ta.ones((4, 8)), ta.ones((8, 2))).nodes[-1]
    square = ta.capture(product, ta.ones((4, 4)), ta.ones((4, 2))).nodes[-1]
    assert (tall.axes, tall.update) == ((0, -1), "each")
    assert (wide.axes, wide.update) == (square.axes, square.update) == ((1, 0), "all")


def test_problems_hold_small_values_and_store_large_ones(tmp_path: Path) -> None:
    small, large = np.array([1.5, np.nan, -np.inf]), np.arange(5000)
    problem = ta.capture(lambda x, y: (x + 1, y + 1), small, large, values=tmp_path)
    params = {node.outputs[0]: node.params for node in problem.nodes}
    np.testing.assert_array_equal(filled((3,), "float64", None, params["x"]), small)
    np.testing.assert_array_equal(filled((5000,), "int64", [(7, 9)], params["y"]), [7, 8])
    assert params["y"] == {"npy": str(tmp_path / "y.npy")}
    assert ta.captured(lambda y: y + 1, large)[1]["y"] is not None


def test_a_captured_program_computes_what_the_arrays_do() -> None:
    """Each node on its own, from what the problem says of it."""

    def program(x: Any, labels: Any) -> Any:
        rows = x[labels > 0]
        counted = ta.join_update(counts, (labels,), (0,), (3,), dtype="int64", update="all")
        return ta.mean(rows, axis=0), counted, ta.fold_tiles(longest, ta.map_tiles(halved, x), 0, combine="maximum")

    x, labels = np.arange(12.0).reshape(4, 3) - 5, np.array([0, 2, 1, 2])
    problem = ta.capture(program, x, labels)
    shapes = {array.id: array for array in problem.arrays}
    values: dict[str, Any] = {}
    for node in problem.nodes:
        array = shapes[node.outputs[0]]
        values[array.id] = (
            filled(array.shape, array.dtype, None, node.params)
            if node.operator in ("value", "newarray")
            else called(node, [values[name] for name in node.inputs], array.dtype)
        )
    found = [values[name] for name in problem.outputs]
    expected = [x[labels > 0].mean(0), [1, 1, 2], np.abs(x / 2).max(0)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert "longest" in ta.capture(program, x, labels).nodes[-1].function


# What is refused


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda x: x + ta.ones(7), r"test_lazy_graph.py:\d+: add: shapes \(4, 3\) and \(7,\) do not broadcast"),
        (lambda x: x @ x, r"test_lazy_graph.py:\d+: matmul of shapes \(4, 3\) and \(4, 3\)"),
        (lambda x: x & x, r"test_lazy_graph.py:\d+: bitwise_and: .*not supported"),
        (lambda x: ta.sum(x, axis=2), r"axis 2 of an array with 2 axes"),
        (lambda x: x.reshape(5, 5), r"reshape of \(4, 3\) to \(5, 5\)"),
        (lambda x: x.astype("int8") + 300, "add: Python integer 300 out of bounds for int8"),
        (lambda x: ta.asarray(["a"]), "arrays hold numbers, not <U1"),
        (lambda x: np.linalg.lstsq(x, x), "treadle.array has no numpy.linalg.lstsq"),
        (lambda x: np.frexp(x), "treadle.array has no numpy.frexp"),
        (lambda x: np.subtract.reduceat(x, [0]), "treadle.array has no numpy.subtract.reduceat"),
        (lambda x: np.exp(x, out=np.ones((4, 3))), "numpy.exp of treadle.array: .*out"),
        (lambda x: np.sum(x, where=np.ones((4, 3), bool)), "numpy.sum of treadle.array: .*where"),
    ],
)
def test_errors_name_the_operation(program: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        program(ta.ones((4, 3)))
    assert "\n" not in str(caught.value)


def test_errors_of_values_name_the_line_of_the_operation() -> None:
    x = ta.take(ta.ones(3), ta.asarray([0, 5]), axis=0)
    with pytest.raises(IndexError, match=r"test_lazy_graph.py:\d+: take: index 5 is out of bounds"):
        x.numpy()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda x: x[x[:, 0] > 0].reshape(-1), r"reshape needs the shape of the filter of test_lazy_graph.py:\d+"),
        (lambda x: x[x[:, 0] > 0].shape, r"the program needs the shape of the filter"),
        (lambda x: x[x > 0], r"test_lazy_graph.py:\d+: select: its data decide its shape"),
        (lambda x: ta.unique_values(x) + 1, r"test_lazy_graph.py:\d+: unique: its data decide"),
        (lambda x: ta.map_tiles(lambda tile: tile, x), r"the function .*<lambda> cannot be imported"),
        (lambda x: 3, r"<lambda> returns int, not an array"),
    ],
)
def test_programs_that_no_plan_can_have(program: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ta.capture(program, np.ones((4, 3)))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"init": "primes"}, "no init 'primes'"),
        ({}, "no init None"),
        ({"data": [1, 2]}, "cannot be filled"),
        ({"init": "full"}, "cannot be filled: 'value'"),
        ({"npy": "absent.npy"}, "absent.npy: is no file of an array"),
    ],
)
def test_new_arrays_that_cannot_be_filled(params: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        filled((3,), "float64", None, params)


@pytest.mark.parametrize("init", ["uniform", "normal", "integers", "arange", "linspace", "eye"])
@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 5)])
def test_contents_do_not_depend_on_how_an_array_is_cut(init: str, shape: tuple[int, ...]) -> None:
    params = {"init": init, "seed": 3, "low": 0, "high": 9, "start": 1, "step": 2, "stop": 9, "k": 1}
    params |= {"low": 0.0, "high": 1.0} if init == "uniform" else {}
    whole = filled(shape, "float64", None, params)
    rng = np.random.default_rng(0)
    for _ in range(20):
        region = [tuple(sorted(map(int, rng.integers(0, size + 1, 2)))) for size in shape]
        part = filled(shape, "float64", region, params)
        np.testing.assert_array_equal(part, whole[tuple(slice(*each) for each in region)])


def test_random_numbers_have_their_distribution() -> None:
    uniform, normal = ta.uniform((200, 100), seed=1).numpy(), ta.normal((200, 100), seed=1).numpy()
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(uniform.var() - 1 / 12) < 0.01
    assert abs(normal.mean()) < 0.02
    assert abs(normal.var() - 1) < 0.03
    assert (ta.uniform((200, 100), seed=2).numpy() != uniform).any()
