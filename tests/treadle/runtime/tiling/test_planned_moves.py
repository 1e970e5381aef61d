"""What the interpreter moves is what plans say, edge by edge, whichever method and cost model made them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

import treadle.array as ta
from treadle.planner.passes.tiling.planning import TilingOptions, plan_tiling
from treadle.planner.passes.tiling.problem import MeshAxis, TransferCost
from treadle.runtime.tiling.interpreter import run

RNG = np.random.default_rng(3)
X, W = RNG.random((7, 5)), RNG.random(5)


def program(x, w):
    a = x + w
    running = ta.cumsum(a, axis=0)
    turned = running.T
    product, other = running @ turned, turned @ a
    kept = x[x[:, 0] > 0.5]
    return running, turned[1::2, :3] * 2, product, other.sum(), (kept * w).sum(axis=0), x.mean(axis=1), ta.max(a)


@pytest.mark.parametrize("workers", [2, 3, 4, 7])
@pytest.mark.parametrize(("method", "model", "dup_bytes"), [("row", "exact", 0), ("greedy", "seed", 10**6),
                                                            ("worst", "exact", 10**6)])  # fmt: skip
def test_bytes_of_each_edge(workers, method, model, dup_bytes):
    problem, values = ta.captured(program, X, W)
    problem = replace(problem, mesh=(MeshAxis(name="w", size=workers),), dup_bytes=dup_bytes, model=model)
    decisions = plan_tiling(problem, options=TilingOptions(method=method)).decisions
    found = run(decisions, values=values)
    assert {edge: count.bytes for edge, count in found.moved.items()} == planned_bytes(decisions)
    for name, expected in zip(problem.outputs, program(X, W), strict=True):
        assert np.allclose(found.outputs[name], np.asarray(expected)), name


@pytest.mark.parametrize("alltoall", ["direct", "gathered"])
@pytest.mark.parametrize(
    ("mesh", "fixed"),
    [
        ((2, 2), {"add1": ("S0", "S1"), "matmul1": ("R", "S0"), "swapaxis1": ("S1", "S1"), "divide1": ("R", "S0")}),
        ((2, 1, 2), {"add1": ("S1", "S0", "R"), "matmul2": ("S0", "S1", "R")}),
        ((4,), {"add1": ("S1",), "cumulative_sum1": ("S0",), "matmul1": ("S1",)}),
    ],
)
def test_bytes_of_each_edge_on_meshes(mesh, fixed, alltoall):
    x, w = RNG.random((8, 12)), RNG.random(12)
    problem, values = ta.captured(program, x, w)
    costs = tuple(
        TransferCost(transfer=each, rate=10**9) for each in ("allgather", "reduce-scatter", "allreduce", "alltoall")
    )
    axes = tuple(MeshAxis(name=f"m{i}", size=n, costs=costs, alltoall=alltoall) for i, n in enumerate(mesh))
    arrays = tuple(replace(array, fixed=fixed.get(array.id)) for array in problem.arrays)
    decisions = plan_tiling(replace(problem, mesh=axes, arrays=arrays, model="time")).decisions
    found = run(decisions, values=values)
    assert {edge: count.bytes for edge, count in found.moved.items()} == planned_bytes(decisions) != {}
    for name, expected in zip(problem.outputs, program(x, w), strict=True):
        assert np.allclose(found.outputs[name], np.asarray(expected)), name


def planned_bytes(decisions):
    """Of each edge: those of one may move an array twice, as an update and as a second copy."""
    planned = Counter()
    for edge in decisions.edges:
        planned[edge.array, edge.node, edge.reading] += edge.bytes
    return {edge: count for edge, count in planned.items() if count}
