"""Functions of each element on its own: all are maps."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import numpy as np

from treadle.array.lazy import Array, Operand
from treadle.array.lowering import given, mapped

Elementwise = Callable[..., Array]


def elementwise(function: str, operands: int) -> Elementwise:
    """The public function of the map `function` with that many operands."""

    def apply(*given: Operand) -> Array:
        if len(given) != operands:
            raise TypeError(f"{function} takes {operands} operands, not {len(given)}")
        return mapped(function, *given)

    apply.__name__ = apply.__qualname__ = function
    apply.__doc__ = f"NumPy's {function}."
    names = {1: ("x",), 2: ("x1", "x2"), 3: ("condition", "x1", "x2")}[operands]
    own = Signature([Parameter(name, Parameter.POSITIONAL_ONLY) for name in names])
    setattr(apply, "__signature__", own)  # noqa: B010
    return apply


absolute = abs = elementwise("absolute", 1)
acos = arccos = elementwise("arccos", 1)
acosh = arccosh = elementwise("arccosh", 1)
add = elementwise("add", 2)
asin = arcsin = elementwise("arcsin", 1)
asinh = arcsinh = elementwise("arcsinh", 1)
atan = arctan = elementwise("arctan", 1)
atan2 = arctan2 = elementwise("arctan2", 2)
atanh = arctanh = elementwise("arctanh", 1)
bitwise_and = elementwise("bitwise_and", 2)
bitwise_invert = bitwise_not = invert = elementwise("invert", 1)
bitwise_left_shift = left_shift = elementwise("left_shift", 2)
bitwise_or = elementwise("bitwise_or", 2)
bitwise_right_shift = right_shift = elementwise("right_shift", 2)
bitwise_xor = elementwise("bitwise_xor", 2)
cbrt = elementwise("cbrt", 1)
conj = conjugate = elementwise("conjugate", 1)
copysign = elementwise("copysign", 2)
cos = elementwise("cos", 1)
cosh = elementwise("cosh", 1)
deg2rad = radians = elementwise("deg2rad", 1)
divide = true_divide = elementwise("divide", 2)
equal = elementwise("equal", 2)
exp = elementwise("exp", 1)
exp2 = elementwise("exp2", 1)
expm1 = elementwise("expm1", 1)
float_power = elementwise("float_power", 2)
floor_divide = elementwise("floor_divide", 2)
fmax = elementwise("fmax", 2)
fmin = elementwise("fmin", 2)
fmod = elementwise("fmod", 2)
gcd = elementwise("gcd", 2)
greater = elementwise("greater", 2)
greater_equal = elementwise("greater_equal", 2)
heaviside = elementwise("heaviside", 2)
hypot = elementwise("hypot", 2)
imag = elementwise("imag", 1)
isfinite = elementwise("isfinite", 1)
isinf = elementwise("isinf", 1)
isnan = elementwise("isnan", 1)
lcm = elementwise("lcm", 2)
less = elementwise("less", 2)
less_equal = elementwise("less_equal", 2)
log = elementwise("log", 1)
log1p = elementwise("log1p", 1)
log2 = elementwise("log2", 1)
log10 = elementwise("log10", 1)
logaddexp = elementwise("logaddexp", 2)
logaddexp2 = elementwise("logaddexp2", 2)
logical_and = elementwise("logical_and", 2)
logical_not = elementwise("logical_not", 1)
logical_or = elementwise("logical_or", 2)
logical_xor = elementwise("logical_xor", 2)
maximum = elementwise("maximum", 2)
minimum = elementwise("minimum", 2)
multiply = elementwise("multiply", 2)
negative = elementwise("negative", 1)
nextafter = elementwise("nextafter", 2)
not_equal = elementwise("not_equal", 2)
positive = elementwise("positive", 1)
pow = power = elementwise("power", 2)
rad2deg = degrees = elementwise("rad2deg", 1)
real = elementwise("real", 1)
reciprocal = elementwise("reciprocal", 1)
remainder = mod = elementwise("remainder", 2)
rint = elementwise("rint", 1)
sign = elementwise("sign", 1)
signbit = elementwise("signbit", 1)
sin = elementwise("sin", 1)
sinh = elementwise("sinh", 1)
sqrt = elementwise("sqrt", 1)
square = elementwise("square", 1)
subtract = elementwise("subtract", 2)
tan = elementwise("tan", 1)
tanh = elementwise("tanh", 1)
where = elementwise("where", 3)
ceil = elementwise("ceil", 1)
floor = elementwise("floor", 1)
trunc = elementwise("trunc", 1)


def round(x: Operand, /, decimals: int = 0) -> Array:
    """To the nearest, halves to even."""
    return mapped("round", x, decimals=int(decimals)) if decimals else mapped("round", x)


def angle(x: Operand, /) -> Array:
    return mapped("angle", x)


def clip(x: Operand, /, min: Operand | None = None, max: Operand | None = None) -> Array:
    """`x` where it lies between `min` and `max`, else the nearer of them. Bounds of another dtype of the same kind of
    numbers do not change that of `x`, as the array API standard says."""
    made = given(x)
    for bound, nearer, within in ((min, maximum, greater_equal), (max, minimum, less_equal)):
        if bound is not None:
            made = _bounded(made, bound, nearer, within)
    return made


def _bounded(x: Array, bound: Operand, nearer: Elementwise, within: Elementwise) -> Array:
    kind = getattr(bound, "dtype", None)
    if kind is None:
        return nearer(x, bound)
    if kind == x.dtype or not (kind.kind in "iu" and x.dtype.kind in "iu"):
        made = nearer(x, bound)
        return made.astype(x.dtype) if kind.kind == x.dtype.kind else made
    # No dtype holds both uint64 and int64: they are compared, and each value that stays is one of `x`.
    return where(within(x, bound), x, given(bound).astype(x.dtype))


def isclose(a: Operand, b: Operand, /, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Array:
    """As NumPy's: |a - b| <= atol + rtol |b|."""
    near = less_equal(abs(subtract(a, b)), add(atol, multiply(rtol, abs(b))))
    close = logical_or(logical_and(near, isfinite(b)), equal(a, b))
    return logical_or(close, logical_and(isnan(a), isnan(b))) if equal_nan else close


def allclose(a: Operand, b: Operand, /, **tolerances: Any) -> bool:
    """Evaluates both."""
    return bool(np.all(isclose(a, b, **tolerances).numpy()))
