"""The steps that move an array between two tilings, as calls on a `treadle.runtime.tiling.collectives.Mesh`.

Each step is one call, in the order of the plan; no call decides anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.decisions import TiledEdge, TransferStep
from treadle.planner.passes.tiling.problem import ArrayTiling, MeshAxis

CALLS = ("allgather", "allreduce", "alltoall", "part", "reduce_scatter")
"""Methods of the mesh."""


def local_shape(shape: Sequence[int], tiling: ArrayTiling, mesh: Sequence[MeshAxis]) -> tuple[int, ...]:
    """What one worker has of an array of `shape`. Raises InputError where an axis is not cut evenly."""
    local = list(shape)
    for placement, axis in zip(tiling, mesh, strict=True):
        if placement.startswith("S"):
            cut = int(placement[1])
            if cut >= len(local) or local[cut] % axis.size:
                raise InputError(f"found shape {list(shape)} in {'.'.join(tiling)}, expected axes that are cut evenly")
            local[cut] //= axis.size
    return tuple(local)


def moved(name: str, edge: TiledEdge, start: ArrayTiling, end: ArrayTiling, mesh: Sequence[MeshAxis]) -> Iterator[str]:
    """An expression for each step of `edge`: the first reads `name`, the others `_`. Raises InputError for steps that
    do not lead from `start` to `end`."""
    tiling = start
    for step in edge.steps:
        for call in _calls(step, tiling, mesh[step.axis]):
            yield call.format(name)
            name = "_"
        tiling = step.tiling
    if tiling != end:
        text = f"found steps of {edge.array!r} at {edge.node!r} to {'.'.join(tiling)}, expected {'.'.join(end)}"
        raise InputError(text)


def _calls(step: TransferStep, before: ArrayTiling, axis: MeshAxis) -> tuple[str, ...]:
    number, old, new = step.axis, before[step.axis], step.tiling[step.axis]
    if step.tiling != (*before[:number], new, *before[number + 1 :]):
        raise InputError(
            f"found a step from {'.'.join(before)} to {'.'.join(step.tiling)}, expected one axis at a time"
        )
    match step.transfer:
        case "allgather":
            return (f"mesh.allgather({{}}, {number}, {old[1]})",)
        case "allreduce":
            return (f"mesh.allreduce({{}}, {number})",)
        case "reduce-scatter":
            return (f"mesh.reduce_scatter({{}}, {number}, {new[1]})",)
        case "slice":
            return (f"mesh.part({{}}, {number}, {new[1]})",)
        case "alltoall" if axis.alltoall == "gathered":
            return f"mesh.allgather({{}}, {number}, {old[1]})", f"mesh.part({{}}, {number}, {new[1]})"
        case "alltoall":
            return (f"mesh.alltoall({{}}, {number}, {old[1]}, {new[1]})",)
    raise InputError(f"found a step {step.transfer!r}, expected one along an axis of the mesh")
