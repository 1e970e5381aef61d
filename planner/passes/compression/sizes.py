"""Functions of a size, an integer, or of many at once, an array of int64: the same values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle.planner.documents.compression_costs import CompressorCost, Curve, Point, interpolated, over_pieces

Size = Any
"""An integer, or an array of them."""
LARGEST = 1 << 62


def on_curve(curve: Curve, size: Size) -> Size:
    """ns, as Curve.at has them."""
    if isinstance(size, int):
        return curve.at(size)
    return np.where(size > 0, _interpolated(curve.points, size), 0)


def decode_ns(cost: CompressorCost, elements: Size, pieces: int) -> Size:
    """ns, as CompressorCost.decode_ns has them."""
    if isinstance(elements, int):
        return cost.decode_ns(elements, pieces)
    if not cost.decode:
        return np.zeros_like(elements)
    known = [(curve.pieces, _interpolated(curve.points, elements)) for curve in cost.decode]
    return np.where(elements > 0, over_pieces(known, pieces), 0)


def each(function: Callable[[int], int], size: Size) -> Size:
    """The value of a function that takes one integer."""
    if isinstance(size, int):
        return function(size)
    return np.array([function(one) for one in size.tolist()], np.int64)


def larger(one: Size, other: Size) -> Size:
    return max(one, other) if isinstance(one, (int, float)) else np.maximum(one, other)


def whole(number: Size) -> Size:
    """Rounded towards 0."""
    return int(number) if isinstance(number, float) else number.astype(np.int64)


def _interpolated(points: Sequence[Point], sizes: Size) -> Size:
    """As interpolated, for an array."""
    if len(points) == 1:
        return np.full_like(sizes, points[0][1])
    far, top = points[-1]
    if 2 * (top + 1) * max(far, int(sizes.max(initial=0))) > LARGEST:
        return each(lambda size: interpolated(points, size), sizes)
    x, y = np.array(points, np.int64).T
    place = np.clip(np.searchsorted(x, sizes, side="right"), 1, len(points) - 1)
    width, rise = x[place] - x[place - 1], y[place] - y[place - 1]
    found = y[place - 1] + (2 * rise * (sizes - x[place - 1]) + width) // (2 * width)
    return np.where(sizes <= x[0], y[0], found)
