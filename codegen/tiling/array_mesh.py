"""Plans of the paper's graph as plans of a mesh: what each word for a tiling means on the workers.

`B` is a mesh of two axes, of which the first cuts axis 0 and the second axis 1; on that mesh other cuts use both axes.
`D0` and `D1` are two tiles of one array. An array without axes is whole on each worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.problem import ArrayTiling, MeshAxis
from treadle.planner.passes.tiling.tile_maps import copies, grid


def engine_mesh(decisions: TilingDecisions) -> tuple[MeshAxis, ...]:
    """The mesh on which the plan runs: its own, or the grid of workers on which its blocks lie."""
    problem = decisions.problem
    if not problem.published or ("B",) not in decisions.tilings:
        return problem.mesh
    rows, columns = grid(problem.mesh[0].size)
    return (MeshAxis(name="rows", size=rows), MeshAxis(name="columns", size=columns))


def on_mesh(tiling: ArrayTiling, rank: int, axes: int, *, published: bool) -> list[ArrayTiling]:
    """The tilings on a mesh of `axes` axes of the copies of an array with this many axes."""
    if not published:
        return [tiling]
    word = tiling[0]
    if rank == 0:
        return [("R",) * axes]
    if word == "B":
        return [("S0", "S1")]
    return [(cut,) * axes for cut in copies(word)]


def projected(tiling: ArrayTiling, shape: Sequence[int], out: Sequence[int]) -> ArrayTiling:
    """What a map that makes a result of shape `out` in `tiling` reads of an input of `shape`, which is broadcast."""
    behind = len(out) - len(shape)
    words = []
    for word in tiling:
        axis = int(word[1]) - behind if word.startswith("S") else -1
        words.append(f"S{axis}" if axis >= 0 and shape[axis] > 1 else "R")
    return tuple(words)


def folded(tiling: ArrayTiling, axes: Sequence[int], *, keepdims: bool) -> ArrayTiling:
    """How a fold over `axes` leaves its result: a partial one where a folded axis is cut."""
    words = []
    for word in tiling:
        cut = int(word[1]) if word.startswith("S") else None
        if cut is None:
            words.append(word)
        elif cut in axes:
            words.append("P")
        else:
            words.append(f"S{cut if keepdims else cut - sum(axis < cut for axis in axes)}")
    return tuple(words)
