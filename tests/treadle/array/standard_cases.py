"""Random calls of every function of the Python array API standard, as plain data that any namespace can run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Values = np.ndarray[Any, Any]
Call = tuple[tuple[Any, ...], dict[str, Any]]
BITS = (8, 16, 32, 64)
DTYPES = {
    "bool": ["bool"],
    "signed": [f"int{bits}" for bits in BITS],
    "unsigned": [f"uint{bits}" for bits in BITS],
    "real": ["float32", "float64"],
    "complex": ["complex64", "complex128"],
}
KINDS = {
    "integer": ("signed", "unsigned"),
    "floating": ("real", "complex"),
    "number": ("signed", "unsigned", "real"),
    "numeric": ("signed", "unsigned", "real", "complex"),
    "whole": ("bool", "signed", "unsigned"),
    "any": ("bool", "signed", "unsigned", "real", "complex"),
    "comparable": ("bool", "signed", "unsigned", "real"),
}


class Dtype(str):
    """The dtype of this name of the namespace that runs the call."""


@dataclass
class Draw:
    """What a case draws its arguments from. `special`: infinities and what is not a number are among the values."""

    rng: np.random.Generator
    special: bool = True
    used: list[str] = field(default_factory=list)

    def pick(self, choices: Any) -> Any:
        choices = list(choices)
        return choices[int(self.rng.integers(len(choices)))]

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def flag(self) -> bool:
        return bool(self.rng.integers(2))

    def shape(self, low: int = 0, high: int = 3, least: int = 0) -> tuple[int, ...]:
        return tuple(self.number(least, 4) for _ in range(self.number(low, high)))

    def dtype(self, kind: str) -> str:
        return str(self.pick(DTYPES[self.pick(KINDS.get(kind, (kind,)))]))

    def array(self, kind: str = "any", shape: tuple[int, ...] | None = None, dtype: str | None = None) -> Values:
        shape = self.shape() if shape is None else shape
        dtype = self.dtype(kind) if dtype is None else dtype
        if dtype == "bool":
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype.startswith("u"):
            return self.rng.integers(0, 9, shape).astype(dtype)
        if dtype.startswith("int"):
            return self.rng.integers(-9, 9, shape).astype(dtype)
        values = np.zeros(shape, dtype)
        values.real = self.floats(shape)
        if dtype.startswith("c"):
            values.imag = self.floats(shape)
        return values

    def floats(self, shape: tuple[int, ...]) -> Values:
        values = np.asarray(self.rng.normal(size=shape) * self.pick([0.5, 3.0]))
        if self.special:
            odd = self.rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], size=shape)
            values = np.where(self.rng.random(shape) < 0.2, odd, values)
        return values

    def pair(self, kind: str) -> tuple[Values, Values]:
        """Arrays whose dtypes promote and whose shapes broadcast."""
        family = self.pick(KINDS.get(kind, (kind,)))
        shape = self.shape()
        other = tuple(self.pick([size, 1]) for size in shape)[self.number(0, len(shape)) :]
        pair = [self.array(shape=each, dtype=str(self.pick(DTYPES[family]))) for each in (shape, other)]
        return (pair[0], pair[1]) if self.flag() else (pair[1], pair[0])

    def axis(self, array: Values, *, low: bool = True) -> int:
        return self.number(-array.ndim if low else 0, array.ndim - 1)

    def axes(self, array: Values) -> Any:
        """None, one axis or several."""
        axes = [axis for axis in range(array.ndim) if self.flag()]
        return self.pick([None, tuple(axes), *([self.axis(array)] if array.ndim else [])])

    def matrices(self, kind: str = "floating", square: bool = False, least: int = 1) -> Values:
        rows = self.number(least, 4)
        columns = rows if square else self.number(least, 4)
        batch = self.shape(0, 1, 1)
        return Draw(self.rng, special=False).array(kind, (*batch, rows, columns))

    def definite(self) -> Values:
        one = self.matrices(square=True)
        return np.asarray(one @ np.conj(np.swapaxes(one, -1, -2)) + np.eye(one.shape[-1], dtype=one.dtype))


def _unary(kind: str, special: bool = True) -> Callable[[Draw], Call]:
    return lambda draw: ((Draw(draw.rng, special).array(kind),), {})


def _binary(kind: str) -> Callable[[Draw], Call]:
    def case(draw: Draw) -> Call:
        one, other = draw.pair(kind)
        if draw.flag() and one.dtype.kind in "fc":
            return (one, 1.5), {}
        return (one, other), {}

    return case


def _shift(draw: Draw) -> Call:
    one, other = draw.pair("integer")
    return (one, np.abs(other) % 7), {}


def _power(draw: Draw) -> Call:
    one, other = draw.pair("numeric")
    return (one, np.abs(other) % 4 if other.dtype.kind in "iu" else other), {}


def _clip(draw: Draw) -> Call:
    x, other = draw.pair("number")
    shape = np.broadcast_shapes(x.shape, other.shape)
    x = draw.array(shape=shape, dtype=x.dtype.name)
    other = draw.array(shape=other.shape, dtype=x.dtype.name)
    bounds = draw.pick([(1, 5), (None, 3), (2, None), (None, None), (other, None), (1, other + 2)])
    return (x, *bounds), {}


def _reduction(kind: str, *, dtype: bool = False, nonempty: bool = False) -> Callable[[Draw], Call]:
    def case(draw: Draw) -> Call:
        x = draw.array(kind, draw.shape(least=1) if nonempty else None)
        options: dict[str, Any] = {"axis": draw.axes(x), "keepdims": draw.flag()}
        if dtype and draw.flag():
            options["dtype"] = Dtype("complex128" if x.dtype.kind == "c" else "float64")
        return (x,), options

    return case


def _spread(draw: Draw) -> Call:
    x = draw.array("real", draw.shape(least=1))
    return (x,), {"axis": draw.axes(x), "keepdims": draw.flag(), "correction": draw.pick([0, 1, 0.5])}


def _running(draw: Draw) -> Call:
    x = Draw(draw.rng, special=False).array("numeric", draw.shape(1, 3))
    options: dict[str, Any] = {"axis": draw.axis(x), "include_initial": draw.flag()}
    return (x,), options


def _place(draw: Draw) -> Call:
    x = draw.array("number", draw.shape(1, 3, 1))
    return (x,), {"axis": draw.pick([None, draw.axis(x)]), "keepdims": draw.flag()}


def _sorted(draw: Draw) -> Call:
    x = draw.array("number", draw.shape(1, 3))
    return (x,), {"axis": draw.axis(x), "descending": draw.flag()}


def _search(draw: Draw) -> Call:
    line = np.sort(Draw(draw.rng, special=False).array("real", (draw.number(1, 6),)))
    options: dict[str, Any] = {"side": draw.pick(["left", "right"])}
    if draw.flag():
        options["sorter"] = draw.rng.permutation(line.size)
        line = line[np.argsort(options["sorter"])]
    return (line, draw.array(shape=draw.shape(1, 2), dtype=line.dtype.name)), options


def _concat(draw: Draw) -> Call:
    shape = draw.shape(1, 3)
    axis, dtype = draw.number(0, len(shape) - 1), draw.dtype("any")
    shapes = [(*shape[:axis], draw.number(0, 3), *shape[axis + 1 :]) for _ in range(draw.number(1, 3))]
    return ([draw.array(shape=each, dtype=dtype) for each in shapes],), {"axis": draw.pick([axis, axis - len(shape)])}


def _stack(draw: Draw) -> Call:
    shape, dtype = draw.shape(), draw.dtype("any")
    return ([draw.array(shape=shape, dtype=dtype) for _ in range(draw.number(1, 3))],), {
        "axis": draw.number(-len(shape) - 1, len(shape))
    }


def _expand(draw: Draw) -> Call:
    x = draw.array()
    return (x,), {"axis": draw.number(-x.ndim - 1, x.ndim)}


def _squeeze(draw: Draw) -> Call:
    shape = (*draw.shape(0, 2), 1, *draw.shape(0, 1))
    x = draw.array(shape=shape)
    return (x, draw.pick([each for each, size in enumerate(shape) if size == 1])), {}


def _permuted(draw: Draw) -> Call:
    x = draw.array()
    return (x, tuple(int(each) for each in draw.rng.permutation(x.ndim))), {}


def _moved(draw: Draw) -> Call:
    x = draw.array(shape=draw.shape(1, 3))
    return (x, draw.axis(x), draw.axis(x)), {}


def _reshaped(draw: Draw) -> Call:
    x = draw.array(shape=draw.shape(least=1))
    shapes = [(-1,), (x.size,), (1, *x.shape), (*x.shape, 1), (x.size, 1), (*x.shape[::-1],)]
    return (x, draw.pick(shapes)), {}


def _rolled(draw: Draw) -> Call:
    x = draw.array(shape=draw.shape(1, 3))
    return (x, draw.number(-5, 5)), {"axis": draw.pick([None, draw.axis(x)])}


def _repeated(draw: Draw) -> Call:
    x = draw.array(shape=draw.shape(1, 3, 1))
    axis = draw.axis(x)
    return draw.pick(
        [
            ((x, draw.number(0, 3)), {"axis": draw.pick([None, axis])}),
            ((x, draw.rng.integers(0, 3, x.shape[axis])), {"axis": axis}),
        ]
    )


def _taken(draw: Draw) -> Call:
    x = draw.array(shape=draw.shape(1, 3, 1))
    axis = draw.axis(x)
    return (x, draw.rng.integers(0, x.shape[axis], draw.number(0, 5))), {"axis": axis}


def _taken_along(draw: Draw) -> Call:
    x = draw.array(shape=draw.shape(1, 3, 1))
    axis = draw.axis(x)
    shape = [draw.pick([size, 1]) for size in x.shape]
    shape[axis] = draw.number(0, 5)
    return (x, draw.rng.integers(0, x.shape[axis], shape)), {"axis": axis}


def _broadcast(draw: Draw) -> Call:
    shape = draw.shape()
    x = draw.array(shape=tuple(draw.pick([size, 1]) for size in shape)[draw.number(0, len(shape)) :])
    return (x, shape), {}


def _differences(draw: Draw) -> Call:
    x = draw.array("numeric", draw.shape(1, 3))
    return (x,), {"axis": draw.axis(x), "n": draw.number(0, 2)}


def _matmul(draw: Draw) -> Call:
    one = draw.matrices("numeric")
    left, right = one.shape[:-2], (one.shape[-1], draw.number(1, 4))
    other = draw.array(shape=draw.pick([right, right[:1], (*left, *right)]), dtype=one.dtype.name)
    return (one if draw.flag() or one.ndim > 2 else one[0], other), {}


def _tensordot(draw: Draw) -> Call:
    inner = draw.shape(0, 2, 1)
    dtype = draw.dtype("numeric")
    shapes = ((*draw.shape(0, 1, 1), *inner), (*inner, *draw.shape(0, 1, 1)))
    one, other = (Draw(draw.rng, special=False).array(shape=each, dtype=dtype) for each in shapes)
    return (one, other), {"axes": len(inner)}


def _vectors(length: int | None) -> Callable[[Draw], Call]:
    def case(draw: Draw) -> Call:
        shape = (*draw.shape(0, 2, 1), length or draw.number(1, 4))
        dtype, plain = draw.dtype("numeric"), Draw(draw.rng, special=False)
        return tuple(plain.array(shape=shape, dtype=dtype) for _ in range(2)), {"axis": -1}

    return case


def _outer(draw: Draw) -> Call:
    dtype = draw.dtype("numeric")
    one, other = (draw.array(shape=(draw.number(0, 4),), dtype=dtype) for _ in range(2))
    return (one, other), {}


def _triangle(draw: Draw) -> Call:
    return (draw.array(shape=draw.shape(2, 3)),), {"k": draw.number(-4, 4)}


def _diagonal(draw: Draw) -> Call:
    return (draw.array("numeric", draw.shape(2, 3, 1)),), {"offset": draw.number(-3, 3)}


def _solve(draw: Draw) -> Call:
    one = draw.definite()
    shape = draw.pick([(one.shape[-1],), (one.shape[-1], 2), (*one.shape[:-1], 2)])
    return (one, Draw(draw.rng, special=False).array(shape=shape, dtype=one.dtype.name)), {}


def _vector_norm(draw: Draw) -> Call:
    x = Draw(draw.rng, special=False).array("floating", draw.shape(least=1))
    orders = [0, 1, 2, 3, np.inf, -np.inf, 0.5, -1]
    return (x,), {"axis": draw.axes(x), "keepdims": draw.flag(), "ord": draw.pick(orders)}


def _with_limit(draw: Draw) -> Call:
    x = draw.matrices()
    limit = draw.pick([None, 0.01, np.asarray(draw.rng.random(x.shape[:-2]) / 10)])
    return (x,), {} if limit is None else {"rtol": limit}


def _matrix_norm(draw: Draw) -> Call:
    orders = ["fro", "nuc", 1, 2, -1, -2, np.inf, -np.inf]
    return (draw.matrices(),), {"keepdims": draw.flag(), "ord": draw.pick(orders)}


def _fourier(kind: str) -> Callable[[Draw], Call]:
    def case(draw: Draw) -> Call:
        x = Draw(draw.rng, special=False).array(kind, tuple(draw.number(2, 5) for _ in range(draw.number(1, 3))))
        options = {"axis": draw.axis(x), "norm": draw.pick(["backward", "ortho", "forward"])}
        return (x,), {**options, **({"n": draw.number(2, 6)} if draw.flag() else {})}

    return case


def _fouriers(kind: str) -> Callable[[Draw], Call]:
    def case(draw: Draw) -> Call:
        x = Draw(draw.rng, special=False).array(kind, tuple(draw.number(2, 5) for _ in range(draw.number(2, 3))))
        axes = [int(each) for each in draw.rng.permutation(x.ndim)[:2]]
        return (x,), {"norm": draw.pick(["backward", "ortho"]), **({"axes": axes, "s": [3, 4]} if draw.flag() else {})}

    return case


def _shifted(draw: Draw) -> Call:
    x = draw.array("floating", draw.shape(1, 3))
    return (x,), {"axes": draw.pick([None, draw.axis(x)])}


def _range(draw: Draw) -> Call:
    ends = draw.pick([(draw.number(-9, 9),), (draw.number(-9, 9), draw.number(-9, 9)), (2.5,), (-1.5, 3)])
    step = draw.pick([1, 2, -3, 0.25, -1.5]) if len(ends) == 2 and draw.flag() else 1
    return (*ends, *([step] if step != 1 else [])), {"dtype": Dtype(draw.dtype("real"))} if draw.flag() else {}


def _line(draw: Draw) -> Call:
    dtype = draw.pick(["float32", "float64", "int64", "complex128"])
    ends = (draw.number(-3, 3), draw.pick([2.5, -7, 1j] if dtype == "complex128" else [2.5, -7]))
    return (*ends, draw.number(0, 6)), {"endpoint": draw.flag(), **({"dtype": Dtype(dtype)} if draw.flag() else {})}


def _made(draw: Draw) -> Call:
    return (draw.pick([draw.shape(), draw.number(0, 5)]),), {"dtype": Dtype(draw.dtype("any"))} if draw.flag() else {}


def _made_like(draw: Draw) -> Call:
    return (draw.array(),), {"dtype": Dtype(draw.dtype("any"))} if draw.flag() else {}


ELEMENTWISE: dict[str, str] = {
    "abs": "numeric",
    "acos": "floating",
    "acosh": "floating",
    "asin": "floating",
    "asinh": "floating",
    "atan": "floating",
    "atanh": "floating",
    "bitwise_invert": "whole",
    "ceil": "number",
    "conj": "complex",
    "cos": "floating",
    "cosh": "floating",
    "exp": "floating",
    "expm1": "floating",
    "floor": "number",
    "imag": "complex",
    "isfinite": "numeric",
    "isinf": "numeric",
    "isnan": "numeric",
    "log": "floating",
    "log10": "floating",
    "log1p": "floating",
    "log2": "floating",
    "logical_not": "bool",
    "negative": "numeric",
    "positive": "numeric",
    "real": "complex",
    "reciprocal": "floating",
    "round": "numeric",
    "signbit": "real",
    "sin": "floating",
    "sinh": "floating",
    "sqrt": "floating",
    "square": "numeric",
    "tan": "floating",
    "tanh": "floating",
    "trunc": "number",
}
PAIRWISE: dict[str, str] = {
    **dict.fromkeys(["add", "subtract", "multiply"], "numeric"),
    "divide": "floating",
    **dict.fromkeys(["floor_divide", "remainder", "maximum", "minimum"], "number"),
    **dict.fromkeys(["atan2", "copysign", "hypot", "logaddexp", "nextafter"], "real"),
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], "whole"),
    **dict.fromkeys(["logical_and", "logical_or", "logical_xor"], "bool"),
    **dict.fromkeys(["equal", "not_equal"], "any"),
    **dict.fromkeys(["greater", "greater_equal", "less", "less_equal"], "number"),
}
CASES: dict[str, Callable[[Draw], Call]] = {
    **{name: _unary(kind) for name, kind in ELEMENTWISE.items()},
    **{name: _binary(kind) for name, kind in PAIRWISE.items()},
    "pow": _power,
    "sign": _unary("numeric", special=False),
    "bitwise_left_shift": _shift,
    "bitwise_right_shift": _shift,
    "clip": _clip,
    "where": lambda draw: ((draw.array("bool", (3, 1)), *(draw.array("real", each) for each in ((3, 4), (4,)))), {}),
    "sum": _reduction("numeric", dtype=True),
    "prod": _reduction("numeric", dtype=True),
    "mean": _reduction("floating", nonempty=True),
    "max": _reduction("number", nonempty=True),
    "min": _reduction("number", nonempty=True),
    "any": _reduction("any"),
    "all": _reduction("any"),
    "count_nonzero": _reduction("any"),
    "std": _spread,
    "var": _spread,
    "cumulative_sum": _running,
    "cumulative_prod": _running,
    "diff": _differences,
    "argmax": _place,
    "argmin": _place,
    "sort": _sorted,
    "argsort": _sorted,
    "searchsorted": _search,
    "nonzero": lambda draw: ((draw.array(shape=draw.shape(1, 3)),), {}),
    **{f"unique_{each}": _unary("any", special=each == "values") for each in ("values", "counts", "inverse", "all")},
    "isin": lambda draw: ((draw.array(dtype="int64"), draw.array(shape=(3,), dtype="int64")), {}),
    "concat": _concat,
    "stack": _stack,
    "unstack": lambda draw: ((x := draw.array(shape=draw.shape(1, 3)),), {"axis": draw.axis(x)}),
    "expand_dims": _expand,
    "squeeze": _squeeze,
    "permute_dims": _permuted,
    "moveaxis": _moved,
    "reshape": _reshaped,
    "roll": _rolled,
    "repeat": _repeated,
    "tile": lambda draw: ((draw.array(), tuple(draw.number(0, 3) for _ in range(draw.number(0, 3)))), {}),
    "flip": lambda draw: ((x := draw.array(),), {"axis": draw.axes(x)}),
    "take": _taken,
    "take_along_axis": _taken_along,
    "broadcast_to": _broadcast,
    "broadcast_arrays": lambda draw: (draw.pair("any"), {}),
    "broadcast_shapes": lambda draw: (((2, 1), (draw.number(2, 5),)), {}),
    "meshgrid": lambda draw: (
        tuple(draw.array(shape=(draw.number(0, 3),), dtype="float32") for _ in range(draw.number(1, 3))),
        {"indexing": draw.pick(["xy", "ij"])},
    ),
    "tril": _triangle,
    "triu": _triangle,
    "matmul": _matmul,
    "matrix_transpose": lambda draw: ((draw.array(shape=draw.shape(2, 3)),), {}),
    "tensordot": _tensordot,
    "vecdot": _vectors(None),
    "linalg.cross": _vectors(3),
    "linalg.outer": _outer,
    "linalg.diagonal": _diagonal,
    "linalg.trace": _diagonal,
    "linalg.cholesky": lambda draw: ((draw.definite(),), {"upper": draw.flag()}),
    "linalg.det": lambda draw: ((draw.matrices(square=True),), {}),
    "linalg.inv": lambda draw: ((draw.definite(),), {}),
    "linalg.solve": _solve,
    "linalg.pinv": _with_limit,
    "linalg.qr": lambda draw: ((draw.matrices(),), {"mode": draw.pick(["reduced", "complete"])}),
    "linalg.svd": lambda draw: ((draw.matrices(),), {"full_matrices": draw.flag()}),
    "linalg.svdvals": lambda draw: ((draw.matrices(),), {}),
    "linalg.eigh": lambda draw: ((draw.definite(),), {}),
    "linalg.eigvalsh": lambda draw: ((draw.definite(),), {}),
    "linalg.slogdet": lambda draw: ((draw.matrices(square=True),), {}),
    "linalg.matrix_rank": _with_limit,
    "linalg.matrix_power": lambda draw: ((draw.definite(), draw.number(-2, 4)), {}),
    "linalg.matrix_norm": _matrix_norm,
    "linalg.vector_norm": _vector_norm,
    **{f"fft.{name}": _fourier("complex") for name in ("fft", "ifft", "irfft", "hfft")},
    **{f"fft.{name}": _fourier("real") for name in ("rfft", "ihfft")},
    **{f"fft.{name}": _fouriers("complex") for name in ("fftn", "ifftn", "irfftn")},
    "fft.rfftn": _fouriers("real"),
    **{f"fft.{name}": lambda draw: ((draw.number(1, 9),), {"d": 0.5}) for name in ("fftfreq", "rfftfreq")},
    **{f"fft.{name}": _shifted for name in ("fftshift", "ifftshift")},
    "zeros": _made,
    "ones": _made,
    "zeros_like": _made_like,
    "ones_like": _made_like,
    "full": lambda draw: ((draw.shape(), draw.pick([2, 1.5, True, 1j])), {}),
    "full_like": lambda draw: ((draw.array("numeric"), 2), {}),
    "eye": lambda draw: ((draw.number(0, 4), draw.pick([None, draw.number(0, 4)])), {"k": draw.number(-5, 5)}),
    "arange": _range,
    "linspace": _line,
    "astype": lambda draw: ((draw.array("comparable", draw.shape()), Dtype(draw.dtype("comparable"))), {}),
    "result_type": lambda draw: (draw.pair("numeric"), {}),
}
OPERATORS = {
    **dict.fromkeys(["neg", "pos", "abs"], (1, "numeric")),
    "invert": (1, "whole"),
    **dict.fromkeys(["add", "sub", "mul"], (2, "numeric")),
    "truediv": (2, "floating"),
    **dict.fromkeys(["floordiv", "mod", "lt", "le", "gt", "ge"], (2, "number")),
    **dict.fromkeys(["and_", "or_", "xor"], (2, "whole")),
    **dict.fromkeys(["eq", "ne"], (2, "any")),
}
