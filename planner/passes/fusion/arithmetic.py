"""What operations do with numbers: 16-bit floats are computed in f32 and rounded after every operation.

Arrays of bf16 are kept in float32, with values that bf16 has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treadle.planner.machine.dtypes import FLOATS, Dtype

Array: TypeAlias = NDArray[Any]
STORED: dict[Dtype, type[np.generic]] = {
    "f16": np.float16,
    "bf16": np.float32,
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int32,
    "i64": np.int64,
    "bool": np.bool_,
}
COMPUTED: dict[Dtype, type[np.generic]] = {**STORED, "f16": np.float32}


def rounded(values: Array | float, dtype: Dtype) -> Array:
    """To the nearest value of `dtype`, ties to even; towards zero from floats to integers."""
    if dtype != "bf16":
        return np.asarray(values).astype(STORED[dtype])
    wide = np.asarray(values)
    bits = _to_odd(wide).view(np.uint32).astype(np.uint64)
    near = ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)).astype(np.uint32)
    return np.where(np.isnan(wide), np.float32(np.nan), near.view(np.float32))


def _to_odd(values: Array) -> NDArray[np.float32]:
    """To f32, but inexact values to the odd one of their neighbours, so that rounding again changes nothing."""
    near = np.ascontiguousarray(values, np.float32)
    if values.dtype != np.float64:
        return near
    odd = (near.view(np.uint32) & 1).astype(bool)
    off = (near.astype(np.float64) != values) & ~odd & np.isfinite(values)
    return np.where(off, np.nextafter(near, np.where(values > near, np.inf, -np.inf).astype(np.float32)), near)


def wide(values: Array | float, dtype: Dtype) -> Array:
    """A tensor, or a number that takes the dtype of the others, as it is computed with."""
    return (rounded(values, dtype) if not isinstance(values, np.ndarray) else values).astype(COMPUTED[dtype])


def _sigmoid(x: Array) -> Array:
    one = x.dtype.type(1)
    return np.asarray(one / (one + np.exp(-x)))


def _gelu(x: Array) -> Array:
    from scipy.special import erf  # slow to import

    half, one, root = (x.dtype.type(number) for number in (0.5, 1, math.sqrt(0.5)))
    return np.asarray(half * x * (one + np.asarray(erf(x * root))))


def _power(x: Array, y: Array) -> Array:
    return np.power(x, y) if x.dtype.kind == "f" else np.power(x, np.maximum(y, 0))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "Neg": np.negative,
    "Sqrt": np.sqrt,
    "Rsqrt": lambda x: x.dtype.type(1) / np.sqrt(x),
    "Exp": np.exp,
    "Log": np.log,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.where(x < 0, x.dtype.type(0), x),
    "GeLU": _gelu,
    "SiLU": lambda x: x / (x.dtype.type(1) + np.exp(-x)),
    "Sigmoid": _sigmoid,
    "Abs": np.abs,
    "Not": np.invert,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": _power,
    "Max": np.maximum,
    "Min": np.minimum,
    "Eq": np.equal,
    "Ne": np.not_equal,
    "Lt": np.less,
    "Le": np.less_equal,
    "Gt": np.greater,
    "Ge": np.greater_equal,
    "And": np.bitwise_and,
    "Or": np.bitwise_or,
    "Xor": np.bitwise_xor,
}
"""Pointwise operations by name, on arrays of what they are computed in."""
COMBINE: dict[str, Callable[..., Array]] = {"+": np.add, "max": np.maximum, "min": np.minimum}


def neutral(op: str, dtype: Dtype) -> float | int:
    """What does not change a reduction by `op`."""
    if op == "+":
        return 0
    if dtype in FLOATS:
        return -math.inf if op == "max" else math.inf
    limits = np.iinfo(STORED[dtype])  # type: ignore[type-var]
    return int(limits.min if op == "max" else limits.max)


def poison(dtype: Dtype) -> float | int | bool:
    """What stands where a rank has no value."""
    if dtype in FLOATS:
        return math.nan
    return False if dtype == "bool" else int(np.iinfo(STORED[dtype]).min)  # type: ignore[type-var]
