"""Jacobi's method: a linear system whose diagonal dominates, solved by iteration."""

from __future__ import annotations

from typing import Any

import numpy as np

import treadle.array as ta


def solved(matrix: Any, right: Any, iterations: int) -> Any:
    diagonal = np.diagonal(matrix)
    x = np.zeros_like(right)
    for _ in range(iterations):
        x = x + (right - matrix @ x) / diagonal
    return x


def program(size: int = 300, iterations: int = 10) -> ta.Array:
    matrix = ta.uniform((size, size), seed=1) + 2.0 * size * ta.eye(size)
    made: ta.Array = solved(matrix, ta.normal(size, seed=2), iterations)
    return made
