"""Linear algebra of the last two axes: the extension `linalg` of the Python array API standard.

A factorisation needs a matrix whole: batches are cut over workers, a single matrix is factorised by one. Blocked
programs of products and of factorisations of small matrices, as in `examples/tiling`, use all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from treadle.array import linear
from treadle.array.creation import eye
from treadle.array.elementwise import abs, power
from treadle.array.lazy import Array, Operand
from treadle.array.linear import cross, matmul, outer, tensordot, vecdot
from treadle.array.lowering import given, joined, known_shape
from treadle.array.manipulation import broadcast_to, expand_dims, matrix_transpose, reshape
from treadle.array.node import problem_of
from treadle.array.reductions import Axis, count_nonzero, largest, min, norm, sum

# fmt: off
__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "norm", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
    "tensordot", "trace", "vecdot", "vector_norm",
]
# fmt: on


class EighResult(NamedTuple):
    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    U: Array
    S: Array
    Vh: Array


def diagonal(x: Operand, /, *, offset: int = 0) -> Array:
    return linear.diagonal(x, offset, -2, -1)


def trace(x: Operand, /, *, offset: int = 0, dtype: Any = None) -> Array:
    return linear.trace(x, offset, -2, -1, dtype)


def cholesky(x: Operand, /, *, upper: bool = False) -> Array:
    x, shape = _square(x, "cholesky")
    return _per_matrix("cholesky_upper" if upper else "cholesky", (x,), shape[-2:], x.dtype)


def det(x: Operand, /) -> Array:
    x, _ = _square(x, "det")
    return _per_matrix("det", (x,), (), x.dtype)


def inv(x: Operand, /) -> Array:
    x, shape = _square(x, "inv")
    return _per_matrix("inv", (x,), shape[-2:], x.dtype)


def solve(x: Operand, right: Operand, /) -> Array:
    """The solutions of `x @ y = right`, a vector or columns of a matrix."""
    (x, shape), right = _square(x, "solve"), _floats(right, "solve")
    have = known_shape(right, "solve")
    vector = right.ndim == 1
    if not have or have[-1 if vector else -2] != shape[-1]:
        raise problem_of(f"solve of shapes {shape} and {have}")
    if vector:
        return reshape(solve(x, reshape(right, (-1, 1))), shape[:-1])
    batch = np.broadcast_shapes(shape[:-2], have[:-2])
    x = x if len(shape) == 2 else broadcast_to(x, (*batch, *shape[-2:]))
    right = right if len(have) == 2 else broadcast_to(right, (*batch, *have[-2:]))
    return _per_matrix("solve", (x, right), have[-2:], np.result_type(x.dtype, right.dtype))


def qr(x: Operand, /, *, mode: str = "reduced") -> QRResult:
    if mode not in ("reduced", "complete"):
        raise problem_of(f"qr has the modes reduced and complete, not {mode!r}")
    x, (*_, rows, columns) = _matrices(x, "qr")
    inner = rows if mode == "complete" else np.minimum(rows, columns)
    left = _per_matrix("qr_q", (x,), (rows, inner), x.dtype, mode=mode)
    return QRResult(left, _per_matrix("qr_r", (x,), (inner, columns), x.dtype, mode=mode))


def svd(x: Operand, /, *, full_matrices: bool = True) -> SVDResult:
    x, (*_, rows, columns) = _matrices(x, "svd")
    least, full = np.minimum(rows, columns), bool(full_matrices)
    left = _per_matrix("svd_u", (x,), (rows, rows if full else least), x.dtype, full_matrices=full)
    right = _per_matrix("svd_vh", (x,), (columns if full else least, columns), x.dtype, full_matrices=full)
    return SVDResult(left, svdvals(x), right)


def svdvals(x: Operand, /) -> Array:
    x, (*_, rows, columns) = _matrices(x, "svdvals")
    return _per_matrix("svdvals", (x,), (np.minimum(rows, columns),), _real(x.dtype))


def eigh(x: Operand, /) -> EighResult:
    x, shape = _square(x, "eigh")
    values = _per_matrix("eigh_values", (x,), shape[-1:], _real(x.dtype))
    return EighResult(values, _per_matrix("eigh_vectors", (x,), shape[-2:], x.dtype))


def eigvalsh(x: Operand, /) -> Array:
    x, shape = _square(x, "eigvalsh")
    return _per_matrix("eigvalsh", (x,), shape[-1:], _real(x.dtype))


def slogdet(x: Operand, /) -> SlogdetResult:
    x, _ = _square(x, "slogdet")
    sign = _per_matrix("slogdet_sign", (x,), (), x.dtype)
    return SlogdetResult(sign, _per_matrix("slogdet_log", (x,), (), _real(x.dtype)))


def pinv(x: Operand, /, *, rtol: Operand | None = None) -> Array:
    """`rtol` is one number, or one for each matrix."""
    x, (*batch, rows, columns) = _matrices(x, "pinv")
    rtol = _precision(x.dtype, rows, columns) if rtol is None else rtol
    if np.ndim(rtol) == 0:
        return _per_matrix("pinv", (x,), (columns, rows), x.dtype, rtol=float(given(rtol)))
    limits = broadcast_to(expand_dims(rtol, (-2, -1)), (*batch, 1, 1))
    return _per_matrix("pinv_within", (x, limits), (columns, rows), x.dtype)


def matrix_rank(x: Operand, /, *, rtol: Operand | None = None) -> Array:
    """Singular values that are not within rounding of 0; `rtol` is one number, or one for each matrix."""
    x, (*_, rows, columns) = _matrices(x, "matrix_rank")
    found = svdvals(x)
    rtol = _precision(x.dtype, rows, columns) if rtol is None else rtol
    rtol = expand_dims(rtol, -1) if np.ndim(rtol) else rtol
    if 0 in (rows, columns):
        return sum(found, -1, dtype=np.int64)
    return count_nonzero(found > largest(found, -1, keepdims=True) * rtol, -1)


def matrix_power(x: Operand, n: int, /) -> Array:
    """The product of `n` times `x`, by repeated squares."""
    x, shape = _square(x, "matrix_power", number=True)
    if n < 0:
        return matrix_power(inv(x), -n)
    if n == 0:
        return broadcast_to(eye(shape[-1], dtype=x.dtype), shape)
    half = matrix_power(x, n // 2) if n > 1 else None
    squared = matmul(half, half) if half is not None else x
    return matmul(squared, x) if n > 1 and n % 2 else squared


def matrix_norm(x: Operand, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """Frobenius, nuclear (`nuc`), spectral (2, -2), of column sums (1, -1) or of row sums (inf, -inf)."""
    x, _ = _matrices(x, "matrix_norm")
    inner = {1: -2, -1: -2, np.inf: -1, -np.inf: -1}.get(ord)
    if ord == "fro":
        return norm(x, (-2, -1), keepdims=keepdims)
    if ord == "nuc" or ord in (2, -2):
        values = svdvals(x)
        made = sum(values, -1) if ord == "nuc" else largest(values, -1) if ord == 2 else min(values, -1)
        return expand_dims(made, (-2, -1)) if keepdims else made
    if inner is None:
        raise problem_of(f"matrix_norm with ord {ord!r}")
    sums = sum(abs(x), inner, keepdims=True)
    return (largest if ord > 0 else min)(sums, (-2, -1), keepdims=keepdims)


def vector_norm(x: Operand, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:
    x = _floats(x, "vector_norm")
    if ord in (1, 2, np.inf):
        return norm(x, axis, keepdims=keepdims, ord=ord)
    if ord == 0:
        return count_nonzero(x, axis, keepdims=keepdims).astype(_real(x.dtype))
    if ord == -np.inf:
        return min(abs(x), axis, keepdims=keepdims)
    return power(sum(power(abs(x), ord), axis, keepdims=keepdims), 1 / ord)


def _precision(dtype: np.dtype[Any], rows: int, columns: int) -> float:
    return float(np.finfo(dtype).eps) * float(np.maximum(rows, columns))


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.zeros((), dtype).real.dtype


def _floats(x: Operand, operation: str) -> Array:
    x = given(x)
    if x.dtype.name not in ("float32", "float64", "complex64", "complex128"):
        raise problem_of(f"{operation} of an array of {x.dtype}")
    return x


def _matrices(x: Operand, operation: str) -> tuple[Array, tuple[int, ...]]:
    x = _floats(x, operation)
    shape = known_shape(x, operation)
    if len(shape) < 2:
        raise problem_of(f"{operation} of an array of shape {shape}: it has no matrices")
    return x, shape


def _square(x: Operand, operation: str, number: bool = False) -> tuple[Array, tuple[int, ...]]:
    x = given(x) if number else _floats(x, operation)
    shape = known_shape(x, operation)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise problem_of(f"{operation} of an array of shape {shape}, whose matrices are not square")
    return x, shape


def _per_matrix(function: str, arrays: Sequence[Array], shape: Sequence[int], dtype: Any, **params: Any) -> Array:
    """`function` of each matrix of a batch; the result for one matrix has `shape`."""
    batch = next((each.shape[:-2] for each in arrays if each.ndim > 2), ())
    # Workers have no part of matrices without elements, whose determinant is 1 all the same.
    cut = all(each.size for each in arrays)
    axes = [0 if cut and each.ndim > 2 else -1 for each in arrays]
    made = (*batch, *(int(size) for size in shape))
    return joined(function, arrays, axes, made, dtype, **params)
