"""The table of functions: functions of the user, constants, what merges partial results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import treadle.array as ta
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.problem import ArrayNode
from treadle.runtime.tiling.functions import FUNCTIONS, called, combine_of, constant, function_of, neutral


def node(operator: str, function: str, **more: Any) -> ArrayNode:
    return ArrayNode(id="n", operator=operator, function=function, outputs=("y",), **more)


def test_every_ufunc_of_the_table_has_as_many_operands_as_its_public_function() -> None:
    for name, function in FUNCTIONS.items():
        if isinstance(function.local, np.ufunc) and name != "matmul":
            public = getattr(ta, name)
            assert public(*[ta.ones(2, dtype=int)] * function.local.nin).shape == (2,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("os.system", "no function 'os.system'"),
        ("no_such_module_of_mine:f", "cannot be imported: No module named"),
        ("math:no_such_name", "cannot be imported"),
        ("math:pi", "is no function"),
        ("a b:c", "no function 'a b:c'"),
    ],
)
def test_names_that_lead_to_no_function(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        function_of(name)


def test_what_merges_partial_results() -> None:
    assert combine_of(node("fold", "max")) is np.maximum
    assert combine_of(node("fold", "only")) is None
    assert combine_of(node("fold", "math:gcd", params={"combine": "multiply"})) is np.multiply
    for word in ("exp", "load", "add.reduce", 3):
        with pytest.raises(InputError, match="merges no partial results"):
            combine_of(node("fold", "math:gcd", params={"combine": word}))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float32"])
@pytest.mark.parametrize("combine", [np.add, np.maximum, np.minimum, np.fmax, np.logical_and])
def test_a_neutral_element_leaves_every_value(combine: np.ufunc, dtype: str) -> None:
    values = np.array([0, 1, 7]).astype(dtype)
    start = np.full(3, neutral(combine, np.dtype(dtype)), dtype)
    assert np.array_equal(combine(start, values), combine(values, values) if combine is not np.add else values)


@pytest.mark.parametrize(
    "value",
    [True, False, 3, -(2**70), 0.1, float("inf"), 2 - 1j, np.float32(0.1), np.int8(-3), np.complex64(1j), np.bool_(1)],
)
def test_constants_keep_their_value_and_type(value: Any) -> None:
    kind = value.dtype.name if isinstance(value, np.generic) else type(value).__name__
    found = constant(kind, str(value))
    assert found == value
    assert isinstance(found, (bool, np.bool_)) if kind == "bool" else type(found) is type(value)


def test_no_number_is_a_constant() -> None:
    assert np.isnan(constant("float", "nan"))
    params = {"constants": [[0, "float32", "0.1"]]}
    half = called(node("map", "add", params=params), [np.zeros(1, np.float16)], "float32")
    assert half.tolist() == [np.float32(0.1)]


def test_constants_stand_at_their_places() -> None:
    params = {"constants": [[0, "int", "7"], [2, "int", "9"]]}
    made = called(node("map", "where", params=params), [np.array([1, 2])], "int64")
    assert made.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (node("map", "add", params={"constants": [[0]]}), "add: not enough values"),
        (node("map", "add", params={"constants": [[0, "text", "a"]]}), "add: data type 'text' not understood"),
        (node("map", "exp", params={"sideways": 1}), "exp: "),
        (node("slice", "slice"), "slice: 'region'"),
        (node("scan", "cumulative_sum"), "cumulative_sum: tuple index out of range"),
        (node("fold", "sum", axes=(4,)), "sum: axis 4 is out of bounds"),
    ],
)
def test_nodes_that_cannot_be_applied(call: ArrayNode, message: str) -> None:
    with pytest.raises(InputError, match=message):
        called(call, [np.ones(3)], "float64")
