"""Linear regression by gradient descent on the mean squared error."""

from __future__ import annotations

from typing import Any

import numpy as np

import treadle.array as ta


def fitted(x: Any, y: Any, iterations: int, rate: float) -> Any:
    weights = np.zeros_like(x[0])
    for _ in range(iterations):
        weights = weights - rate / x.shape[0] * (x.T @ (x @ weights - y))
    return weights


def program(samples: int = 1000, features: int = 16, iterations: int = 5, rate: float = 0.5) -> ta.Array:
    x = ta.normal((samples, features), seed=1)
    y = x @ ta.normal(features, seed=2) + ta.normal(samples, deviation=0.1, seed=3)
    made: ta.Array = fitted(x, y, iterations, rate)
    return made
