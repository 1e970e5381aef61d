"""`treadle.array` has every name of the Python array API standard, and computes what array-api-strict computes."""

from __future__ import annotations

import inspect
import operator
from contextlib import nullcontext
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treadle.array as ta

from .standard_cases import CASES, OPERATORS, Draw, Dtype

strict = pytest.importorskip("array_api_strict")
UNSETTLED = {"linalg.qr", "linalg.svd", "linalg.eigh"}
"""Factors whose signs are free: their shapes, dtypes and products are compared."""
NOT_COMPARED = {
    "empty": "no contents",
    "empty_like": "no contents",
    "asarray": "how the operands of every case are made",
    "from_dlpack": "a test of its own",
    "can_cast": "a test of its own",
    "isdtype": "a test of its own",
    "finfo": "a test of its own",
    "iinfo": "a test of its own",
}


def _of(space: Any, name: str) -> Any:
    return reduce(getattr, name.split("."), space)


def _converted(space: Any, value: Any) -> Any:
    match value:
        case np.ndarray() | np.generic():
            return space.asarray(np.asarray(value))
        case Dtype():
            return getattr(space, value)
        case list():
            return [_converted(space, each) for each in value]
        case tuple():
            return tuple(_converted(space, each) for each in value)
        case dict():
            return {name: _converted(space, each) for name, each in value.items()}
    return value


def _plain(value: Any) -> Any:
    """The NumPy array or dtype of either namespace."""
    if isinstance(value, ta.Array):
        return value.numpy()
    for attribute in ("_array", "_np_dtype"):
        if hasattr(value, attribute):
            return getattr(value, attribute)
    return tuple(map(_plain, value)) if isinstance(value, (tuple, list)) else value


def _same(name: str, made: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple):
        assert len(made) == len(wanted), name
        for one, other in zip(made, wanted, strict=True):
            _same(name, one, other)
        return
    if not isinstance(wanted, np.ndarray):
        assert made == wanted, name
        return
    assert (made.dtype, made.shape) == (wanted.dtype, wanted.shape), name
    if name in UNSETTLED:
        return
    if wanted.dtype.kind in "fc" and wanted.size:
        finite = np.abs(wanted[np.isfinite(wanted)])
        eps = np.finfo(wanted.dtype).eps
        np.testing.assert_allclose(
            made, wanted, rtol=500 * eps, atol=200 * eps * (finite.max() if finite.size else 1), err_msg=name
        )
    else:
        np.testing.assert_array_equal(made, wanted, err_msg=name)


def _compare(name: str, seed: int, workers: int = 1) -> None:
    args, options = CASES[name](Draw(np.random.default_rng([seed, *name.encode()])))
    with np.errstate(all="ignore"):
        wanted = _plain(_of(strict, name)(*_converted(strict, args), **_converted(strict, options)))
    with ta.using(workers=workers) if workers > 1 else nullcontext():
        made = _plain(_of(ta, name)(*_converted(ta, args), **_converted(ta, options)))
    _same(name, made, wanted)


def _names_of_standard() -> set[str]:
    own = {"set_array_api_strict_flags", "get_array_api_strict_flags", "reset_array_api_strict_flags"}
    own |= {"ArrayAPIStrictFlags", "Device", "__version__"}
    found = {name for name in strict.__all__ if name not in own}
    return found | {f"{each}.{name}" for each in ("linalg", "fft") for name in getattr(strict, each).__all__}


def _functions() -> set[str]:
    names = {name for name in _names_of_standard() if callable(_of(strict, name)) and not name.startswith("__")}
    return {name for name in names if not isinstance(_of(strict, name), type(strict.float32))}


def test_every_name_of_the_standard_is_there() -> None:
    missing = []
    for name in sorted(_names_of_standard()):
        try:
            _of(ta, name)
        except AttributeError:
            missing.append(name)
    assert missing == []


def test_functions_take_the_arguments_of_the_standard() -> None:
    wrong = []
    for name in sorted(_functions()):
        have = inspect.signature(_of(ta, name)).parameters
        for word, wanted in inspect.signature(_of(strict, name)).parameters.items():
            # Dtypes have float64 as default where the standard says None for it.
            if wanted.kind in (wanted.KEYWORD_ONLY, wanted.POSITIONAL_OR_KEYWORD):
                found = have.get(word)
                known = found is not None and found.kind is not found.POSITIONAL_ONLY
                default = found.default if found is not None else None
                if not known or (word not in ("dtype", "copy", "axis", "device") and default != wanted.default):
                    wrong.append((name, word))
    assert wrong == []


def test_every_function_of_the_standard_is_compared() -> None:
    again = {f"linalg.{name}" for name in ("matmul", "matrix_transpose", "tensordot", "vecdot")}
    assert _functions() - set(CASES) - set(NOT_COMPARED) - again == set()


@pytest.mark.parametrize("name", CASES)
def test_functions_agree_with_the_strict_implementation(name: str) -> None:
    for seed in range(4):
        _compare(name, seed)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_agree_with_the_strict_implementation(name: str) -> None:
    operands, kind = OPERATORS[name]
    apply = getattr(operator, name)
    for seed in range(3):
        draw = Draw(np.random.default_rng([seed, *name.encode()]))
        args = (draw.array(kind),) if operands == 1 else draw.pair(kind)
        with np.errstate(all="ignore"):
            wanted = _plain(apply(*_converted(strict, args)))
        _same(name, _plain(apply(*_converted(ta, args))), wanted)


@pytest.mark.parametrize("name", [name for name, (operands, _) in OPERATORS.items() if operands == 2])
def test_operators_take_python_numbers_on_both_sides(name: str) -> None:
    """They take the dtype of the array, and in-place operators change it."""
    apply = getattr(operator, name)
    draw = Draw(np.random.default_rng([*name.encode()]))
    for _ in range(4):
        x = draw.array(OPERATORS[name][1], (2, 3))
        number = {"b": True, "i": 3, "u": 3, "f": 1.5, "c": 1.5j}[x.dtype.kind]
        with np.errstate(all="ignore"):
            for args in ((x, number), (number, x)):
                _same(name, _plain(apply(*_converted(ta, args))), np.asarray(apply(*args)))
            in_place = getattr(operator, f"i{name.strip('_')}", None)
            if in_place:
                _same(name, _plain(in_place(ta.asarray(x), number)), in_place(x.copy(), number))


def test_results_are_arrays_of_their_own() -> None:
    """Else a later `x += 1` on one would change the other."""
    shared = []
    for name in sorted(set(CASES) - {"result_type", "broadcast_shapes"}):
        for seed in range(4):
            args, options = CASES[name](Draw(np.random.default_rng([seed, *name.encode()])))
            args = _converted(ta, args)
            made = _of(ta, name)(*args, **_converted(ta, options))
            given = [id(each) for each in (args[0] if args and isinstance(args[0], list) else args)]
            if any(id(each) in given for each in (made if isinstance(made, (tuple, list)) else (made,))):
                shared.append(name)
    assert sorted(set(shared)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_functions_agree_when_their_arrays_are_cut(name: str) -> None:
    for seed in range(3):
        _compare(name, seed, workers=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(4, 2**32))
def test_functions_agree_on_more_draws(name: str, seed: int) -> None:
    _compare(name, seed)
