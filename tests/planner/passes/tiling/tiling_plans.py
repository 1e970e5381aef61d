"""Small problems of tiling whose decisions are worked by hand."""

from __future__ import annotations

from functools import cache

from treadle.planner.documents.plan import Plan
from treadle.planner.passes.tiling.decisions import NodeTiling, TiledEdge, TilingDecisions, TransferStep
from treadle.planner.passes.tiling.planning import TilingOptions, plan_tiling
from treadle.planner.passes.tiling.problem import (
    VERSION,
    ArrayNode,
    MeshAxis,
    TiledArray,
    TilingProblem,
    TilingRule,
    TransferCost,
)

PROBLEM = TilingProblem(
    version=VERSION,
    name="column sums",
    model="exact",
    mesh=(MeshAxis(name="workers", size=2),),
    arrays=(
        TiledArray(id="x", shape=(4, 6), dtype="float64", item_bytes=8, fixed=("S0",)),
        TiledArray(id="s", shape=(6,), dtype="float64", item_bytes=8),
    ),
    nodes=(
        ArrayNode(id="n0", operator="newarray", function="ones", outputs=("x",), params={"init": "ones"}),
        ArrayNode(id="n1", operator="fold", function="sum", inputs=("x",), outputs=("s",), axes=(0,)),
    ),
    outputs=("s",),
)
"""Each of two workers holds two rows, so that both make a partial sum of each of 6 columns."""


def by_hand() -> TilingDecisions:
    """Each worker sends the other one three partial sums. It holds 12 elements of x and 3 of s at the end."""
    reduced = TransferStep(transfer="reduce", tiling=("S0",))
    return TilingDecisions(
        problem=PROBLEM,
        method="exact",
        tilings=(("S0",), ("S0",)),
        nodes=(
            NodeTiling(node="n0", reads=(), makes=(("S0",),)),
            NodeTiling(node="n1", reads=(("S0",),), makes=(("P",),)),
        ),
        edges=(TiledEdge(array="s", node="n1", steps=(reduced,), bytes=48, cost=6),),
        cost=6,
        moved_bytes=48,
        memory_bytes=120,
        time_ns=24,
    )


def _array(name: str, *shape: int, **fields: object) -> TiledArray:
    return TiledArray(id=name, shape=shape, dtype="float32", item_bytes=4, **fields)  # type: ignore[arg-type]


PROGRAM = TilingProblem(
    version=VERSION,
    name="a program",
    model="exact",
    mesh=(MeshAxis(name="workers", size=3),),
    arrays=(
        _array("x", 6, 8),
        _array("k", 4, fixed=("S0",)),
        _array("t", 8, 6),
        _array("rows", 8),
        _array("columns", 6),
        _array("part", 4, 3),
        _array("bias", 1, 3),
        _array("y", 4, 3),
        _array("z", 8, 3),
        _array("n"),
    ),
    nodes=(
        ArrayNode(id="x.new", operator="newarray", function="ones", outputs=("x",)),
        ArrayNode(id="k.value", operator="value", function="given", outputs=("k",)),
        ArrayNode(id="t.swap", operator="swapaxis", function="swapaxes", inputs=("x",), outputs=("t",), axes=(0, 1)),
        ArrayNode(id="rows.fold", operator="fold", function="sum", inputs=("t",), outputs=("rows",), axes=(1,)),
        ArrayNode(id="columns.fold", operator="fold", function="sum", inputs=("t",), outputs=("columns",), axes=(0,)),
        ArrayNode(
            id="part.slice",
            operator="slice",
            function="slice",
            inputs=("t",),
            outputs=("part",),
            params={"region": [[1, 8, 2], [0, 3, 1]]},
        ),
        ArrayNode(id="bias.new", operator="newarray", function="ones", outputs=("bias",)),
        ArrayNode(id="y.map", operator="map", function="add", inputs=("part", "bias"), outputs=("y",)),
        ArrayNode(
            id="z.join", operator="join_update", function="joined", inputs=("t", "y"), outputs=("z",), axes=(0, -1)
        ),
        ArrayNode(id="n.fold", operator="fold", function="sum", inputs=("z",), outputs=("n",), axes=(0, 1)),
    ),
    outputs=("n", "rows"),
    dup_bytes=1000,
)
"""Reads an array along both axes, through a transposed view and a part of it."""

_COSTS = tuple(
    TransferCost(transfer=transfer, alpha_ns=10, rate=10**9)
    for transfer in ("allgather", "reduce-scatter", "allreduce", "alltoall")
)
LAYER = TilingProblem(
    version=VERSION,
    name="a layer",
    model="time",
    mesh=(MeshAxis(name="data", size=2, costs=_COSTS), MeshAxis(name="tensor", size=2, costs=_COSTS)),
    arrays=(
        _array("x", 8, 8, fixed=("S0", "R")),
        _array("w", 8, 8, kept_item_bytes=8),
        _array("h", 8, 8),
        _array("v", 8, 8, shares="h"),
        _array("loss", fixed=("R", "R")),
        _array("dv", 8, 8),
        _array("dw", 8, 8, like="w"),
    ),
    nodes=(
        ArrayNode(id="x.given", operator="newarray", function="given", outputs=("x",)),
        ArrayNode(id="w.given", operator="newarray", function="given", outputs=("w",)),
        ArrayNode(
            id="mm",
            operator="rule",
            function="aten.mm.default",
            inputs=("x", "w"),
            outputs=("h",),
            rules=(0, 1, 2, 3),
            work_ns=4000,
        ),
        ArrayNode(
            id="view", operator="rule", function="aten.view.default", inputs=("h",), outputs=("v",), rules=(4, 5, 6)
        ),
        ArrayNode(
            id="mean", operator="fold", function="sum", inputs=("v",), outputs=("loss",), axes=(0, 1), work_ns=50
        ),
        ArrayNode(
            id="spread",
            operator="rule",
            function="aten.expand.default",
            inputs=("loss", "v"),
            outputs=("dv",),
            rules=(7, 8, 9),
            work_ns=50,
        ),
        ArrayNode(
            id="dmm",
            operator="rule",
            function="aten.mm.default",
            inputs=("x", "dv"),
            outputs=("dw",),
            rules=(10, 11, 3),
            work_ns=4000,
        ),
    ),
    outputs=("loss", "dw"),
    rules=(
        TilingRule(inputs=("S0", "R"), outputs=("S0",)),
        TilingRule(inputs=("R", "S1"), outputs=("S1",)),
        TilingRule(inputs=("S1", "S0"), outputs=("P",)),
        TilingRule(inputs=("R", "R"), outputs=("R",)),
        TilingRule(inputs=("S0",), outputs=("S0",)),
        TilingRule(inputs=("S1",), outputs=("S1",)),
        TilingRule(inputs=("R",), outputs=("R",)),
        TilingRule(inputs=("R", "S0"), outputs=("S0",)),
        TilingRule(inputs=("R", "S1"), outputs=("S1",)),
        TilingRule(inputs=("R", "R"), outputs=("R",)),
        TilingRule(inputs=("S0", "S0"), outputs=("P",)),
        TilingRule(inputs=("R", "S1"), outputs=("S1",)),
    ),
    call_ns=3,
    memory_bytes=1100,
)
"""A product with its gradient, on a mesh of two axes, whose memory excludes plans."""


@cache
def greedy_plan() -> Plan[TilingDecisions]:
    """The program by the greedy method, with second copies, views, and all kinds of moves."""
    return plan_tiling(PROGRAM, options=TilingOptions(method="greedy"))


@cache
def layer_plan() -> Plan[TilingDecisions]:
    """The layer: data and tensor parallel."""
    return plan_tiling(LAYER)
