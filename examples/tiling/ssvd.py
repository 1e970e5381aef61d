"""Stochastic singular value decomposition: the leading values of a large matrix from a random projection of it."""

from __future__ import annotations

from typing import Any

import numpy as np

import treadle.array as ta


def orthonormal(x: Any) -> Any:
    """Columns that span what those of `x` span. Only the small matrix of their products is factorised."""
    return x @ np.linalg.inv(np.linalg.cholesky(x.T @ x).T)


def decomposed(x: Any, projection: Any, iterations: int) -> tuple[Any, Any]:
    basis = orthonormal(x @ projection)
    for _ in range(iterations):
        basis = orthonormal(x @ (x.T @ basis))
    small = x.T @ basis
    squares, vectors = np.linalg.eigh(small.T @ small)
    return (basis @ vectors)[:, ::-1], np.sqrt(squares)[::-1]


def program(
    rows: int = 600, columns: int = 80, rank: int = 6, extra: int = 4, iterations: int = 2
) -> tuple[ta.Array, ta.Array]:
    x = ta.normal((rows, rank), seed=1) @ ta.normal((rank, columns), seed=2)
    x = x + ta.normal((rows, columns), deviation=0.01, seed=3)
    return decomposed(x, ta.normal((columns, rank + extra), seed=4), iterations)
