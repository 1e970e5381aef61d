"""Results of lazy arrays are those of NumPy: for all dtypes, shapes with no axes or no elements, and broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treadle.array as ta
from tests.treadle.array.same_programs import BINARY, KEYS, KINDS, REDUCED, SHAPED, UNARY, drawn, same

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (5,), (0,), (4, 3), (3, 0), (1, 3), (2, 4, 3))
SCALARS: tuple[Any, ...] = (2, -1, 300, 2.5, True, 1j, np.float32(0.5), np.int8(3), float("nan"))
FEW = settings(max_examples=25, derandomize=True, deadline=None)
seeds = st.integers(0, 2**32 - 1).map(np.random.default_rng)
kinds, shapes = st.sampled_from(KINDS), st.sampled_from(SHAPES)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_array(name: str) -> None:
    rng = np.random.default_rng(1)
    for number, kind in enumerate(KINDS):
        same(UNARY[name], drawn(rng, SHAPES[number % len(SHAPES)], kind))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arrays(name: str) -> None:
    rng = np.random.default_rng(2)
    for one in KINDS:
        shape, other = (SHAPES[each] for each in rng.integers(0, len(SHAPES), 2))
        kind = str(rng.choice(KINDS))
        same(BINARY[name], drawn(rng, shape, one), np.abs(drawn(rng, other, kind)))
        scalar = SCALARS[rng.integers(len(SCALARS))]
        same(BINARY[name], drawn(rng, shape, one), scalar)
        same(BINARY[name], scalar, drawn(rng, shape, one))


@pytest.mark.parametrize("name", REDUCED)
def test_functions_along_axes(name: str) -> None:
    rng = np.random.default_rng(3)
    for number, kind in enumerate(KINDS):
        for shape in SHAPES[number % 3 :: 3]:
            array = drawn(rng, shape, kind)
            same(REDUCED[name], array)
            for axis in (0, -1) if shape else ():
                same(lambda x, axis=axis: REDUCED[name](x, axis), array)


@pytest.mark.parametrize("name", ["sum", "max", "any", "mean", "var"])
def test_several_axes_stay_with_one_element_each(name: str) -> None:
    array = drawn(np.random.default_rng(4), (2, 4, 3), "float64")
    same(lambda x: REDUCED[name](x, axis=(0, 2), keepdims=True), array)
    same(lambda x: REDUCED[name](x, axis=(2, 1)), array)
    same(lambda x: REDUCED[name](x, axis=(1, 1)), array)


@pytest.mark.parametrize("name", SHAPED)
def test_shapes_and_orders(name: str) -> None:
    rng = np.random.default_rng(5)
    for shape in SHAPES:
        if shape or name not in ("repeat", "argsort", "take"):  # NumPy gives numbers an axis here
            same(SHAPED[name], drawn(rng, shape, "int64"))


@pytest.mark.parametrize("name", KEYS)
def test_parts(name: str) -> None:
    rng = np.random.default_rng(6)
    for shape in SHAPES:
        same(lambda x: x[KEYS[name]], drawn(rng, shape, "float32"))


@FEW
@given(seeds, kinds, st.lists(st.sampled_from([*UNARY, *SHAPED, "sum"]), min_size=2, max_size=5))
def test_chains(rng: np.random.Generator, kind: str, names: list[str]) -> None:
    steps = UNARY | SHAPED | {"sum": lambda x: np.sum(x, axis=0)}

    def program(x: Any) -> Any:
        for name in names:
            x = steps[name](x) if x.size < 1000 else x
        return x

    same(program, drawn(rng, (4, 3), kind))


@FEW
@given(seeds, shapes, shapes)
def test_products_of_matrices(rng: np.random.Generator, one: tuple[int, ...], other: tuple[int, ...]) -> None:
    same(lambda x, y: x @ y, drawn(rng, one, "float64"), drawn(rng, other, "int32"))


def test_the_first_place_of_a_tie_and_of_what_is_no_number() -> None:
    same(np.argmax, np.array([1.0, 3.0, 3.0]))
    same(np.argmin, np.array([[1.0, np.nan, 0.0], [2.0, 2.0, 5.0]]))
    same(lambda x: np.argmax(x, axis=1), np.array([[1.0, np.nan, np.nan], [2.0, 2.0, 1.0]]))


def test_views_of_arrays_with_negative_strides() -> None:
    base = np.arange(24.0).reshape(4, 6)[::-1, ::-2]
    same(lambda x: x[1:, ::-1] @ x[:1].T, base)


def test_new_arrays() -> None:
    for name, args in {
        "arange 1": (5,),
        "arange 2": (1, 7, 2),
        "arange 3": (0.1, 1.0, 0.1),
        "arange 4": (5, 0, -2),
        "arange 5": (3, 3),
        "linspace": (0.0, 1.0, 7),
        "eye": (3, 4),
        "zeros": ((2, 0),),
        "ones": (3,),
        "full": ((2, 2), float("inf")),
    }.items():
        name = name.split()[0]
        expected, found = getattr(np, name)(*args), getattr(ta, name)(*args).numpy()
        np.testing.assert_array_equal(found, expected, strict=True)


def test_rows_where_a_mask_is_true_are_folded_without_their_number() -> None:
    rng = np.random.default_rng(7)
    same(lambda x: np.mean(x[x[:, 0] > 0], axis=0), drawn(rng, (9, 3), "float64"))
    same(lambda x: np.var(x[x[:, 0] > 0] * 2 + 1), drawn(rng, (9, 3), "float64"))
    same(lambda x: x[x > 0], drawn(rng, (9, 3), "int64"))
    same(lambda x: x[x[:, 0] > 0] + x[0], drawn(rng, (9, 3), "int64"))
    same(lambda x: np.nonzero(x)[1], drawn(rng, (9, 3), "int64"))
    same(lambda x: np.sort(x[x[:, 0] > 0].reshape(-1)), drawn(rng, (9, 3), "int64"))


def test_methods_and_transforms_go_by_the_names_of_numpy() -> None:
    x = drawn(np.random.default_rng(7), (4, 3, 2), "float64")
    same(lambda x: x.transpose(2, 0, 1), x)
    same(lambda x: x.std(axis=0, ddof=1) + x.var(0), x)
    same(lambda x: x.cumsum(axis=1).round(1), x)
    same(lambda x: x.clip(0).ravel() + x.clip(max=1).flatten(), x)
    same(lambda x: np.fft.fft(x, axis=0).conj(), x)


def test_truth_values_are_clipped_to_the_numbers_that_numpy_makes_of_them() -> None:
    x = np.array([True, False])
    found = np.clip(ta.asarray(x), -1, 0)
    assert found.dtype == np.clip(x, -1, 0).dtype
    assert np.array_equal(np.asarray(found), np.clip(x, -1, 0))
