"""The array object of the standard: its parts, assignments, in-place statements, and its namespace."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.array_api import make_strategies_namespace

import treadle.array as ta

from .standard_cases import Draw

X = np.arange(60.0).reshape(3, 4, 5)
KEYS = {
    "number": 1,
    "numbers": (2, -1, 0),
    "line": slice(1, None),
    "steps": (slice(None, None, 2), slice(3, 0, -2)),
    "backwards": (Ellipsis, slice(None, None, -1)),
    "empty": slice(2, 2),
    "dots": (Ellipsis, 3),
    "new": (None, 1, Ellipsis, None),
    "nothing": (),
    "all": Ellipsis,
    "mask": X[:, 0, 0] > 10,
    "mask of two": X[:, :, 0] > 30,
    "mask of all": X % 3 == 0,
    "mask of no size": np.zeros((0, 4), bool),
    "places": np.array([2, 0, -1]),
    "places of all": (np.array([0, 2]), np.array([3, 1]), np.array([-1, 0])),
    "grid of places": (np.array([[0], [2]]), np.array([3, 1])),
    "places and number": (np.array([0, 2]), 1),
    "number, line, places": (0, slice(None), np.array([1, 1, 4])),
}


@pytest.mark.parametrize("name", KEYS)
def test_parts_are_those_of_numpy(name: str) -> None:
    np.testing.assert_array_equal(ta.asarray(X)[KEYS[name]].numpy(), X[KEYS[name]])


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", [name for name in KEYS if name != "number, line, places"])
def test_assignments_change_what_they_change_in_numpy(name: str, workers: int) -> None:
    key, part = KEYS[name], X[KEYS[name]]
    for value in (7, -part, np.full((1,) * part.ndim, 3.0), -part[:1] if part.ndim else part):
        wanted, made = X.copy(), ta.asarray(X)
        before, view = made + 0, made[:2]
        wanted[key] = value
        with ta.using(workers=workers):
            made[key] = value
            np.testing.assert_array_equal(made.numpy(), wanted)
        np.testing.assert_array_equal(before.numpy(), X)
        np.testing.assert_array_equal(view.numpy(), X[:2])


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        (0, np.ones((2, 5)), ta.ArrayError, r"an assignment of shape \(2, 5\) to a part of shape \(4, 5\)"),
        (5, 1, IndexError, "index 5 of axis 0 with size 3"),
        (0, 1j, ta.ArrayError, "an assignment of complex128 to an array of float64"),
        ((np.array([0, 1]), slice(2)), 1, ta.ArrayError, "arrays of places together with parts"),
        (np.ones(4, bool), 1, ta.ArrayError, r"a mask of shape \(4,\)"),
        (0, 10**400, ta.ArrayError, "an assignment: "),
        ("word", 1, IndexError, "an index of type str"),
    ],
)
def test_assignments_that_are_refused(key: Any, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ta.asarray(X)[key] = value
    with pytest.raises(ta.ArrayError, match="an assignment of float64 to an array of int64"):
        ta.arange(3)[0] = 1.5


IN_PLACE = {
    **dict.fromkeys(["iadd", "isub", "imul"], "numeric"),
    "itruediv": "floating",
    **dict.fromkeys(["ifloordiv", "imod"], "number"),
    **dict.fromkeys(["iand", "ior", "ixor"], "whole"),
    **dict.fromkeys(["ilshift", "irshift"], "unsigned"),
    "ipow": "real",
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_statements_change_the_object(name: str) -> None:
    draw = Draw(np.random.default_rng([*name.encode()]), special=False)
    values = draw.array(IN_PLACE[name], (3, 4))
    other = draw.array(shape=(4,), dtype=values.dtype.name)
    wanted, made = values.copy(), ta.asarray(values)
    alias, copy = made, ta.asarray(made, copy=True)
    with np.errstate(all="ignore"):
        getattr(operator, name)(wanted, other)
    assert getattr(operator, name)(made, ta.asarray(other)) is made
    np.testing.assert_array_equal(alias.numpy(), wanted)
    assert made.dtype == wanted.dtype
    np.testing.assert_array_equal(copy.numpy(), values)


def test_products_in_place() -> None:
    x = ta.asarray(X)
    x @= np.eye(5)
    np.testing.assert_array_equal(x.numpy(), X)
    with pytest.raises(ta.ArrayError, match=r"@= on an array of shape \(3, 4, 5\)"):
        x @= np.ones((5, 2))


def test_statements_that_are_refused() -> None:
    x = ta.ones((3,), dtype=np.int32)
    with pytest.raises(ta.ArrayError, match=r"\+= on an array of shape \(3,\) makes one of \(2, 3\)"):
        x += np.ones((2, 3), np.int32)
    with pytest.raises(ta.ArrayError, match="/= on an array of int32 makes one of float64"):
        x /= 2
    with pytest.raises(TypeError, match="takes an array or a number"):
        x += "words"


def test_names_that_are_missing_are_refused_by_name() -> None:
    with pytest.raises(AttributeError, match=r"treadle\.array has no 'einsum'"):
        _ = ta.einsum
    with pytest.raises(ImportError, match="fromfunction"):
        from treadle.array import fromfunction  # noqa: F401


def test_namespace() -> None:
    x = ta.ones(3)
    assert x.__array_namespace__() is ta
    assert x.__array_namespace__(api_version="2023.12") is ta
    assert x.__array_namespace__(api_version="2021.12") is ta
    with pytest.raises(ValueError, match="not 2020"):
        x.__array_namespace__(api_version="2020.12")
    info = ta.__array_namespace_info__()
    assert info.capabilities() == {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}
    assert info.devices() == [info.default_device()] == [x.device] == ["cpu"]
    assert info.default_dtypes()["indexing"] == ta.argmax(x).dtype
    assert info.default_dtypes()["real floating"] == x.dtype
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    assert len(info.dtypes(kind="integral")) == 8
    assert set(info.dtypes()) == {"bool", *info.dtypes(kind="numeric")}
    with pytest.raises(ta.ArrayError, match="no kind 'words' of dtypes"):
        info.dtypes(kind="words")


def test_dtypes_are_asked_for_limits_and_kinds() -> None:
    assert ta.finfo(ta.ones(2, dtype=ta.float32)).eps == np.finfo(np.float32).eps
    assert type(ta.finfo(ta.complex64).max) is float
    assert ta.iinfo(ta.int8).max == 127
    assert ta.can_cast(ta.ones(2, dtype=ta.float32), ta.float64)
    assert not ta.can_cast(ta.int64, ta.int32)
    assert ta.isdtype(ta.uint8, ("bool", "integral"))


def test_memory_of_other_libraries_is_copied() -> None:
    values = np.arange(4.0)
    made = ta.from_dlpack(values)
    values[0] = 9
    np.testing.assert_array_equal(made.numpy(), np.arange(4.0))
    np.testing.assert_array_equal(np.from_dlpack(made), made.numpy())
    assert ta.all(ta.from_dlpack(made, copy=False) == made)
    with pytest.raises(ta.ArrayError, match="from_dlpack copies"):
        ta.from_dlpack(values, copy=False)


@pytest.mark.parametrize("make", [lambda: ta.zeros(2, device="gpu"), lambda: ta.ones(2).to_device("gpu")])
def test_other_devices_are_refused(make: Any) -> None:
    with pytest.raises(ta.ArrayError, match="device cpu, not 'gpu'"):
        make()


def test_lists_of_lazy_arrays_become_one() -> None:
    x = ta.asarray(X)
    np.testing.assert_array_equal(ta.asarray(ta.unstack(x, axis=1)), np.moveaxis(X, 1, 0))
    np.testing.assert_array_equal(ta.asarray([[x[0, 0, 1], 2], (3, x[0, 0, 4])]), [[1, 2], [3, 4]])
    assert ta.asarray(x, copy=False) is x
    with pytest.raises(ta.ArrayError, match="asarray copies"):
        ta.asarray([1, 2], copy=False)


@pytest.mark.parametrize("kind", ["bool", "integer", "real", "complex"])
def test_hypothesis_draws_arrays_of_the_namespace(kind: str) -> None:
    """Its strategies for any library of the standard use dtypes, creation, assignment and indexing."""
    spaces = make_strategies_namespace(ta)
    dtypes = {
        "bool": spaces.boolean_dtypes(),
        "integer": spaces.integer_dtypes() | spaces.unsigned_integer_dtypes(),
        "real": spaces.floating_dtypes(),
        "complex": spaces.complex_dtypes(),
    }[kind]

    @settings(max_examples=6, deadline=None, derandomize=True, database=None)
    @given(st.data())
    def draw(data: Any) -> None:
        dtype = data.draw(dtypes)
        x = data.draw(spaces.arrays(dtype, spaces.array_shapes(min_dims=0, max_side=4)))
        key = data.draw(spaces.indices(x.shape))
        assert x.dtype == dtype
        np.testing.assert_array_equal(x[key].numpy(), x.numpy()[key])

    draw()


def test_membership_is_inverted() -> None:
    np.testing.assert_array_equal(ta.isin(ta.arange(5), np.array([1, 3]), invert=True), [1, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("x", "min", "max", "wanted"),
    [
        (np.array([1, 2, np.nan], np.float32), np.array([1.5]), np.float64(1.75), np.array([1.5, 1.75, np.nan])),
        (np.array([2**64 - 1, 0, 5], np.uint64), np.array(-1), np.array([7]), np.array([7, 0, 5])),
        (np.array([5, -5], np.int8), np.array(-2, np.int16), None, np.array([5, -2])),
    ],
)
def test_bounds_keep_the_dtype_of_what_they_clip(x: Any, min: Any, max: Any, wanted: Any) -> None:
    made = ta.clip(ta.asarray(x), min, max)
    assert made.dtype == x.dtype
    np.testing.assert_array_equal(made.numpy(), wanted.astype(x.dtype))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 0, 3)])
def test_norms_of_no_elements_are_zero(shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    for order in (1, 2, np.inf):
        wanted = np.linalg.matrix_norm(x, ord=order)
        np.testing.assert_array_equal(ta.linalg.matrix_norm(ta.asarray(x), ord=order).numpy(), wanted, strict=True)
    assert ta.linalg.vector_norm(ta.asarray(x), ord=np.inf).item() == 0


def test_linear_algebra_multiplies_back() -> None:
    x = Draw(np.random.default_rng(3), special=False).array(shape=(2, 4, 3), dtype="complex128")
    u, s, vh = ta.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(u @ (s[..., None] * vh), x, atol=1e-12)
    q, r = ta.linalg.qr(x)
    np.testing.assert_allclose(q @ r, x, atol=1e-12)
    square = x @ np.conj(np.swapaxes(x, -1, -2))
    values, vectors = ta.linalg.eigh(square)
    np.testing.assert_allclose(vectors * values[..., None, :], ta.asarray(square) @ vectors, atol=1e-10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ta.linalg.inv(ta.ones((2, 3))), "inv of an array of shape .* not square"),
        (lambda: ta.linalg.svd(ta.ones(3)), "svd of an array of shape .* no matrices"),
        (lambda: ta.linalg.det(ta.ones((2, 2), dtype=ta.int64)), "det of an array of int64"),
        (lambda: ta.linalg.qr(ta.ones((2, 2)), mode="raw"), "reduced and complete, not 'raw'"),
        (lambda: ta.linalg.solve(ta.ones((2, 2)), ta.ones(3)), "solve of shapes"),
        (lambda: ta.linalg.matrix_norm(ta.ones((2, 2)), ord=3), "matrix_norm with ord 3"),
        (lambda: ta.linalg.cross(ta.ones(2), ta.ones(2)), "not three elements"),
        (lambda: ta.fft.fft(ta.ones(3), n=0), "fft of 0 points"),
        (lambda: ta.fft.fft(ta.ones(3), norm="other"), "the norms backward"),
        (lambda: ta.meshgrid(ta.ones((2, 2))), "meshgrid takes arrays of one axis"),
        (lambda: ta.cumulative_sum(ta.ones((2, 2))), "needs an axis"),
        (lambda: ta.tril(ta.ones(2)), "tril of an array"),
        (lambda: ta.broadcast_shapes((2,), (3,)), "do not broadcast"),
    ],
)
def test_operands_that_do_not_fit_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ta.ArrayError, match=message):
        call()
