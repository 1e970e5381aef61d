"""Evaluation by tiles: the graph becomes a problem, a plan cuts its arrays, and virtual workers run it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from treadle.array.capture import problem_from
from treadle.array.forcing import settle, values_of
from treadle.array.node import LazyNode, in_order
from treadle.array.settings import CURRENT, ArraySettings, using
from treadle.planner.passes.tiling.map_fusion import fused_folds, fused_maps
from treadle.planner.passes.tiling.planning import TilingOptions, plan_tiling
from treadle.planner.passes.tiling.problem import MeshAxis, TilingProblem
from treadle.planner.search.clock import Clock
from treadle.runtime.tiling.interpreter import run

_PLANNING_S = 2.0
"""A graph that is evaluated on the fly is worth no longer search."""


def evaluate_by_tiles(wanted: Sequence[LazyNode]) -> None:
    """Evaluate `wanted`, and with `cache` what the user has a name for, on the workers of the settings.

    What finds out its own shape runs first, on whole arrays: no plan has it.
    """
    settings = CURRENT.get()
    nodes = [node for node in in_order(wanted, _is_known) if not _is_known(node)]
    for node in nodes:
        if node.operator == "filter" and node.function != "filter":
            with using(engine="numpy"):
                values_of([node])
            return evaluate_by_tiles(wanted)
    results = [node for node in nodes if node in wanted or (settings.cache and node.handles)]
    if results:
        _run(results, settings)
    return None


def _is_known(node: LazyNode) -> bool:
    return node.value is not None


def _run(results: list[LazyNode], settings: ArraySettings) -> None:
    problem, values = problem_from(results, "program", {})
    # `problem_from` names outputs in the order of the results.
    decisions = plan_tiling(
        _prepared(problem, settings), options=TilingOptions(method=settings.method), clock=Clock.of(_PLANNING_S)
    ).decisions
    outputs = run(decisions, values=values).outputs
    for node, name in zip(results, problem.outputs, strict=True):
        settle(node, outputs[name])


def _prepared(problem: TilingProblem, settings: ArraySettings) -> TilingProblem:
    sizes = settings.workers if isinstance(settings.workers, tuple) else (settings.workers,)
    problem = replace(
        problem, mesh=tuple(MeshAxis(name=f"workers{axis}", size=size) for axis, size in enumerate(sizes))
    )
    problem = fused_maps(problem) if settings.fuse_maps else problem
    return fused_folds(problem) if settings.fuse_folds else problem
