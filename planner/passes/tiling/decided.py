"""A problem and tilings as decisions: what each node reads and makes, what moves, memory and time."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from treadle.planner.passes.tiling.decisions import GreedyStep, NodeTiling, TilingDecisions, TilingMethod
from treadle.planner.passes.tiling.problem import ArrayTiling, TilingProblem
from treadle.planner.passes.tiling.published_moves import PublishedMoves

RATE = 10**9
"""Bytes per second between workers where the mesh has no costs."""


def decided(
    problem: TilingProblem,
    tilings: Sequence[ArrayTiling],
    reads: Sequence[tuple[ArrayTiling, ...]] = (),
    makes: Sequence[tuple[ArrayTiling, ...]] = (),
    *,
    method: TilingMethod,
    steps: Sequence[GreedyStep] = (),
) -> TilingDecisions:
    """The decisions with these tilings, one for each array. `reads` and `makes` are those of each node; a published
    problem does without, for there they follow from the tilings."""
    if problem.published:
        moves = PublishedMoves(problem, tilings)
        nodes, edges, memory, second = moves.nodes(), moves.edges(), moves.memory_bytes(), moves.dup_bytes()
        cost = sum(edge.cost for edge in edges)
    else:
        from treadle.planner.passes.tiling.live_memory import memory_at
        from treadle.planner.passes.tiling.ruled import priced

        edges, cost = priced(problem, tilings, reads, makes)
        memory, second = max(memory_at(problem, tilings, reads, makes), default=0), 0
        nodes = tuple(
            NodeTiling(node=node.id, reads=read, makes=made)
            for node, read, made in zip(problem.nodes, reads, makes, strict=True)
        )
    moved = sum(edge.bytes for edge in edges)
    return TilingDecisions(
        problem=problem,
        method=method,
        tilings=tuple(tilings),
        nodes=nodes,
        edges=edges,
        steps=tuple(steps),
        cost=cost,
        moved_bytes=moved,
        memory_bytes=memory,
        dup_bytes=second,
        time_ns=time_ns(problem, cost, moved),
    )


def time_ns(problem: TilingProblem, cost: int, moved_bytes: int) -> int:
    """The time of a plan. Elements are as large as the largest of the problem in a published one."""
    if problem.model == "time":
        return cost
    if problem.published:
        moved_bytes = cost * max((array.item_bytes for array in problem.arrays), default=1)
    return _sent_ns(problem, moved_bytes)


def least_ns(problem: TilingProblem, bound: int) -> int:
    """The time of a bound on all plans: on costs, or on moved bytes for a ruled problem of the model exact."""
    return time_ns(problem, bound, bound)


def _sent_ns(problem: TilingProblem, count: int) -> int:
    rate = min((cost.rate for axis in problem.mesh for cost in axis.costs), default=RATE)
    return -(-count * 10**9 // (prod(axis.size for axis in problem.mesh) * rate))
