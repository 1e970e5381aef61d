"""What NumPy computes of a program on whole arrays, and how far other results are from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from treadle.planner.passes.tiling.lifetimes import given_up
from treadle.planner.passes.tiling.problem import TilingProblem
from treadle.runtime.tiling.filled import filled
from treadle.runtime.tiling.functions import called
from treadle.runtime.tiling.tasks import Array

ROUNDING = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4, "float16": 1e-2}
"""How far results may be off, relative to the largest value; others must be equal."""


def by_numpy(problem: TilingProblem, values: Mapping[str, Array]) -> dict[str, Array]:
    """The results of a program by name; `values` are the arrays that the problem lacks."""
    found: dict[str, Array] = {}
    arrays = {array.id: array for array in problem.arrays}
    for node, gone in zip(problem.nodes, given_up(problem), strict=True):
        array = arrays[node.outputs[0]]
        if node.operator in ("newarray", "value"):
            known = values.get(array.id)
            found[array.id] = (
                filled(array.shape, array.dtype, None, node.params)
                if known is None
                else known.astype(array.dtype, copy=False)
            )
        else:
            found[array.id] = called(node, [found[name] for name in node.inputs], array.dtype)
        for name in gone:
            del found[name]
    return {name: found[name] for name in problem.outputs}


def compared(
    problem: TilingProblem, made: Mapping[str, Array], values: Mapping[str, Array]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Each result's largest difference from NumPy's, relative to its largest value, and a sentence for each that is too
    far off."""
    rows = list(_rows(made, by_numpy(problem, values)))
    findings = [
        f"{name} differs from NumPy's by {off:.3g} of its largest value" for name, off, allowed in rows if off > allowed
    ]
    return [{"name": name, "difference": off} for name, off, _ in rows], findings


def _rows(made: Mapping[str, Array], right: Mapping[str, Array]) -> Iterator[tuple[str, float, float]]:
    for name, expected in right.items():
        found = np.asarray(made[name])
        if found.shape != np.shape(expected):
            yield name, float("inf"), 0.0
            continue
        yield name, _difference(found, np.asarray(expected)), ROUNDING.get(str(found.dtype), 0.0)


def _difference(one: Array, other: Array) -> float:
    if np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"):
        return 0.0
    if one.dtype.kind == "b":
        return 1.0
    with np.errstate(all="ignore"):
        off, most = np.nanmax(np.abs(one - other), initial=0), np.nanmax(np.abs(other), initial=0)
    same = np.array_equal(np.isfinite(one), np.isfinite(other))
    return float(off / most) if same and np.isfinite(off) and most else float("inf")
