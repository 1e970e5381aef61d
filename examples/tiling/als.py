"""Alternating least squares: ratings of items by users as a product of two thin matrices.

Ratings are read by rows and by columns in turn, which is why two copies of them may pay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import treadle.array as ta


def factored(ratings: Any, items: Any, iterations: int, penalty: float) -> tuple[Any, Any]:
    ridge = penalty * np.eye(items.shape[1])
    users = solved(ratings, items, ridge)
    for _ in range(iterations):
        items = solved(ratings.T, users, ridge)
        users = solved(ratings, items, ridge)
    return users, items


def solved(ratings: Any, other: Any, ridge: Any) -> Any:
    """The factor that fits the ratings best when the other one is given."""
    return (ratings @ other) @ np.linalg.inv(other.T @ other + ridge)


def program(
    users: int = 300, items: int = 200, rank: int = 8, iterations: int = 3, penalty: float = 0.1
) -> tuple[ta.Array, ta.Array]:
    hidden = ta.uniform((users, rank), seed=1) @ ta.uniform((rank, items), seed=2)
    ratings = hidden + ta.normal((users, items), deviation=0.01, seed=3)
    return factored(ratings, ta.uniform((items, rank), seed=4), iterations, penalty)
