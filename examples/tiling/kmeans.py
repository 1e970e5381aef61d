"""k-means: samples join their nearest centre, and centres move to the mean of their samples."""

from __future__ import annotations

from typing import Any

import numpy as np

import treadle.array as ta


def centred(x: Any, centres: Any, iterations: int) -> Any:
    count = centres.shape[0]
    for _ in range(iterations):
        distances = np.sum(centres**2, axis=1) - 2 * (x @ centres.T)
        nearest = np.argmin(distances, axis=1)
        member = (nearest[:, None] == np.arange(count)).astype(x.dtype)
        centres = (member.T @ x) / np.maximum(np.sum(member, axis=0), 1.0)[:, None]
    return centres


def program(samples: int = 1000, features: int = 8, centres: int = 4, iterations: int = 3) -> ta.Array:
    x = ta.normal((samples, features), seed=1) + 4.0 * ta.integers(0, 2, (samples, 1), seed=2)
    made: ta.Array = centred(x, x[:centres], iterations)
    return made
