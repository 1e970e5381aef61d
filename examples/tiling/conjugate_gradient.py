"""The conjugate gradient method: a symmetric positive definite system, one product with its matrix an iteration."""

from __future__ import annotations

from typing import Any

import numpy as np

import treadle.array as ta


def solved(matrix: Any, right: Any, iterations: int) -> Any:
    x = np.zeros_like(right)
    rest = direction = right
    square = np.sum(rest * rest)
    for _ in range(iterations):
        image = matrix @ direction
        step = square / np.sum(direction * image)
        x, rest = x + step * direction, rest - step * image
        before, square = square, np.sum(rest * rest)
        direction = rest + square / before * direction
    return x


def program(size: int = 300, iterations: int = 8) -> ta.Array:
    half = ta.normal((size, size), seed=1)
    matrix = half @ half.T / size + ta.eye(size)
    made: ta.Array = solved(matrix, ta.normal(size, seed=2), iterations)
    return made
