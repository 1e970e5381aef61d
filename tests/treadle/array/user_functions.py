"""Functions of a user, at the top of a module so that plans can name them."""

from __future__ import annotations

from typing import Any

import numpy as np

Tile = np.ndarray[Any, Any]


def halved(tile: Tile) -> Tile:
    return tile / 2


def longest(tile: Tile, *, axis: tuple[int, ...], keepdims: bool) -> Tile:
    return np.max(np.abs(tile), axis=axis, keepdims=keepdims)


def shifted(rows: Tile, starts: Tile) -> list[tuple[tuple[int], Tile]]:
    """Each row, at its start."""
    return [((int(start),), row) for row, start in zip(rows, starts, strict=True)]


def counts(labels: Tile) -> Tile:
    """How often each of three labels occurs."""
    return np.bincount(labels, minlength=3)
