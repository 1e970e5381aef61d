"""Products that a library computes between our launches, if the target has one: PyTorch calls cuBLAS and cuDNN."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.codegen.fusion.expression import Scope
from treadle.codegen.fusion.matmul import local_extents
from treadle.planner.passes.fusion.stages import Stage

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A MatMul or Conv2d of buffers by their numbers; shapes by rank of a group. What a rank's buffers hold beyond
    these elements is left alone."""

    op: str
    left: int
    right: int
    result: int
    lefts: tuple[Shape, ...]
    rights: tuple[Shape, ...]
    results: tuple[Shape, ...]
    stride: int = 1
    padding: int = 0


def call_of(stage: Stage, scope: Scope) -> Call:
    """The call for a single product. Raises InputError for slices that are no blocks of a dimension."""
    node, ranks = stage.nodes[0], range(scope.bindings.ranks)
    left, right = (str(name) for name in node.inputs)
    lefts, rights, results = (
        tuple(local_extents(scope, node, scope.program.by_name[name].type, rank) for rank in ranks)
        for name in (left, right, node.name)
    )
    return Call(
        op=node.op,
        left=scope.storage(left)[0],
        right=scope.storage(right)[0],
        result=scope.storage(node.name)[0],
        lefts=lefts,
        rights=rights,
        results=results,
        stride=int(node.attribute("stride") or 1),
        padding=int(node.attribute("padding") or 0),
    )
