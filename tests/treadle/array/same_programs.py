"""Programs of NumPy that run on its own arrays and on lazy ones, and must give the same."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import treadle.array as ta

KINDS = (
    "bool",
    "int8",
    "uint8",
    "int32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
Program = Callable[..., Any]


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Small numbers, so that integers and halves do not overflow by different orders of sums."""
    values = rng.integers(0 if dtype.startswith("u") else -4, 5, shape)
    parts = rng.integers(-4, 5, shape) * 1j if dtype.startswith("complex") else 0
    return np.asarray(values + parts).astype(dtype)


def answer(program: Program, *operands: Any) -> Any:
    """What a program gives, as an array of NumPy; the error that ends it otherwise."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            return np.asarray(program(*operands))
        except (TypeError, ValueError, IndexError, OverflowError, ArithmeticError) as error:
            return error


def same(program: Program, *operands: Any) -> None:
    """`program` gives the same on arrays of NumPy and on lazy ones: shape, dtype and values, or an error."""
    expected = answer(program, *operands)
    found = answer(program, *(ta.asarray(each) if isinstance(each, np.ndarray) else each for each in operands))
    if isinstance(expected, Exception):
        assert isinstance(found, Exception), f"NumPy raises {expected!r}, but not for lazy arrays"
        return
    if isinstance(found, Exception):
        raise AssertionError(f"NumPy has an answer: {expected!r}") from found
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    exact = expected.dtype.kind in "biu"
    precision = 0 if exact else max(np.finfo(expected.dtype).eps * 64, 1e-15)
    np.testing.assert_allclose(found, expected, rtol=precision, atol=precision)


UNARY: dict[str, Program] = {
    name: getattr(np, name)
    for name in [
        "negative",
        "abs",
        "sign",
        "exp",
        "sqrt",
        "square",
        "sin",
        "tanh",
        "floor",
        "isnan",
        "logical_not",
        "invert",
        "conjugate",
        "real",
        "imag",
    ]
}
BINARY: dict[str, Program] = {
    name: getattr(operator, name)
    for name in [
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "lt",
        "le",
        "eq",
        "ne",
        "gt",
        "ge",
        "and_",
        "or_",
        "xor",
        "lshift",
        "matmul",
    ]
} | {name: getattr(np, name) for name in ("maximum", "arctan2", "logaddexp", "copysign", "hypot", "gcd", "dot")}
REDUCED: dict[str, Program] = {
    name: getattr(np, name)
    for name in [
        "sum",
        "prod",
        "max",
        "min",
        "any",
        "all",
        "mean",
        "var",
        "std",
        "argmax",
        "argmin",
        "count_nonzero",
        "cumsum",
        "cumprod",
        "ptp",
    ]
}
SHAPED: dict[str, Program] = {
    "transpose": np.transpose,
    "T": lambda x: x.T,
    "ravel": np.ravel,
    "flip": np.flip,
    "squeeze": np.squeeze,
    "expand first": partial(np.expand_dims, axis=0),
    "expand last": partial(np.expand_dims, axis=-1),
    "move": lambda x: np.moveaxis(x, 0, -1),
    "roll": lambda x: np.roll(x, 2, axis=0),
    "roll flat": lambda x: np.roll(x, -1),
    "stack": lambda x: np.stack([x, x], axis=-1),
    "concatenate": lambda x: np.concatenate([x, x[:1], x]),
    "repeat": lambda x: np.repeat(x, 3, axis=-1),
    "sort": lambda x: np.sort(x, axis=0),
    "argsort": lambda x: np.argsort(x, axis=-1, stable=True),
    "fold last": lambda x: x.reshape(x.shape[0], -1),
    "split first": lambda x: x.reshape(x.shape[0] // 2, 2, -1),
    "diagonal": lambda x: np.diagonal(x, offset=1),
    "gram": lambda x: np.tensordot(x, x, axes=((0,), (0,))),
    "outer": lambda x: np.outer(x, x),
    "trace": np.trace,
    "compress": lambda x: np.compress(x.reshape(x.shape[0], -1)[:, 0] > 0, x, axis=0),
    "clip": lambda x: np.clip(x, a_min=-1, a_max=2),
    "where": lambda x: np.where(x > 0, x, 1),
    "take": lambda x: np.take(x, [0, -1, 0], axis=-1),
}
KEYS: dict[str, Any] = {
    "number": 0,
    "last": -1,
    "out of range": 7,
    "range": slice(1, 3),
    "backwards": slice(None, None, -1),
    "every other, backwards": slice(3, None, -2),
    "empty": slice(2, 1),
    "dots": (Ellipsis, slice(0, 2)),
    "new": (None, slice(None), None),
    "numbers": (1, 0),
    "places": [0, 1, 1, -1],
    "places of the last": (Ellipsis, np.array([1, 0])),
    "pairs of places": (np.array([0, 1]), np.array([1, 0])),
    "a table of places": np.array([[0, 1], [1, 0]]),
    "places apart": (np.array([0, 1]), slice(None), np.array([1, 0])),
    "places and a number": (slice(None), 0, np.array([1, 0])),
}
