"""Sums and products of matrices: x + y - x y, the example of "Spartan", and a product of three."""

from __future__ import annotations

from typing import Any

import treadle.array as ta


def mixed(x: Any, y: Any) -> Any:
    return x + y - x @ y


def chained(x: Any, y: Any, z: Any) -> Any:
    return (x @ y) @ z


def program(size: int = 256, width: int = 32) -> tuple[ta.Array, ta.Array]:
    x, y = ta.normal((size, size), seed=1), ta.normal((size, size), seed=2)
    return mixed(x, y), chained(x, y, ta.normal((size, width), seed=3))
