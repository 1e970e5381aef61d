"""What users write of meshes and tilings: `2x4`, `1x8..8x1`, `ARRAY=S0,R`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from treadle.planner.documents.hardware import Hardware
from treadle.planner.documents.nearest import meant
from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.problem import MOST_WORKERS, ArrayTiling, TiledArray, TilingProblem

MOST_AXES = 4
_MESH = re.compile(r"[0-9]{1,6}(?:x[0-9]{1,6})*")
_PLACEMENT = re.compile(r"S[0-9]|R|P|B|D[01]")

Mesh = tuple[int, ...]
"""Workers along each axis."""


def mesh_of(text: str, where: str = "--mesh") -> Mesh:
    """`2x4`, or `8` for one axis. Raises InputError for anything else."""
    sizes = tuple(map(int, text.split("x"))) if _MESH.fullmatch(text) else ()
    if not sizes or len(sizes) > MOST_AXES or not 0 < prod(sizes) <= MOST_WORKERS:
        expected = f"workers along 1 to {MOST_AXES} axes such as 2x4, {MOST_WORKERS} at most"
        raise InputError(f"found {text!r}, expected {expected}", where=where)
    return sizes


def meshes_of(text: str, where: str) -> tuple[Mesh, ...]:
    """`2x4,4x2`, or `1x8..8x1` for all meshes of as many axes and workers, ascending. Raises InputError for anything
    else."""
    first, dots, last = text.partition("..")
    if not dots:
        return tuple(dict.fromkeys(mesh_of(word.strip(), where) for word in text.split(",")))
    low, high = mesh_of(first, where), mesh_of(last, where)
    if len(low) != len(high) or prod(low) != prod(high):
        raise InputError(f"found {text!r}, expected two meshes of as many axes and workers", where=where)
    return tuple(mesh for mesh in _divided(prod(low), len(low)) if min(low, high) <= mesh <= max(low, high))


def _divided(workers: int, axes: int) -> Iterator[Mesh]:
    if axes == 1:
        yield (workers,)
        return
    for size in range(1, workers + 1):
        if workers % size == 0:
            yield from ((size, *rest) for rest in _divided(workers // size, axes - 1))


def require_nested(sizes: Mesh, hardware: Hardware) -> None:
    """Raises InputError for a mesh whose workers do not fill nodes of the hardware, or divide one."""
    workers, per_node = prod(sizes), hardware.devices_per_node
    if workers > hardware.ranks:
        expected = f"at most {hardware.ranks}, the ranks of {hardware.name}; --nodes gives it more nodes"
        raise InputError(f"found {workers} workers, expected {expected}", where="--mesh")
    if hardware.nodes > 1 and workers % per_node and per_node % workers:
        expected = f"a divisor or a multiple of {per_node}, the ranks of a node of {hardware.name}"
        raise InputError(f"found {workers} workers, expected {expected}", where="--mesh")


def require_divides(problem: TilingProblem) -> None:
    """Raises InputError for an axis of the mesh that divides no axis of any array, where tilings have to divide."""
    if problem.published:
        return
    for axis in problem.mesh:
        if axis.size > 1 and not any(size and size % axis.size == 0 for each in problem.arrays for size in each.shape):
            expected = "one that divides an axis of some array"
            raise InputError(f"found an axis of {axis.size} workers, expected {expected}", where="--mesh")


def fixed_tilings(texts: Sequence[str], problem: TilingProblem, where: str = "--fix") -> dict[str, ArrayTiling]:
    """Tilings by array id, of texts such as `blocks.0.expand.weight=S0,R`: an array by its id, or a tensor by its name
    in the model. Raises InputError for unknown arrays, and for tilings that the array cannot have."""
    names = {str(node.params["name"]): node.outputs[0] for node in problem.nodes if "name" in node.params}
    arrays = {array.id: array for array in problem.arrays}
    found: dict[str, ArrayTiling] = {}
    for text in texts:
        name, equals, words = text.rpartition("=")
        tiling = tuple(word.strip() for word in words.split(","))
        if not equals or not all(map(_PLACEMENT.fullmatch, tiling)):
            raise InputError(f"found {text!r}, expected ARRAY=S0,R with a placement for each axis", where=where)
        array = arrays.get(names.get(name, name))
        if array is None:
            raise InputError(f"found no array {name!r}, {meant(name, [*names, *arrays])}", where=where)
        if found.setdefault(array.id, tiling) != tiling:
            first = ",".join(found[array.id])
            raise InputError(f"found {name}={','.join(tiling)} and {first}, expected one tiling", where=where)
        _require_possible(array, tiling, problem, f"{where} {text}")
    return found


def _require_possible(array: TiledArray, tiling: ArrayTiling, problem: TilingProblem, where: str) -> None:
    if len(tiling) != len(problem.mesh):
        raise InputError(f"found {len(tiling)} placements, expected {len(problem.mesh)}, one per axis", where=where)
    if not problem.published and any(word[0] in "BD" for word in tiling):
        raise InputError("found B or D, expected S0, S1, ... or R for rules and meshes", where=where)
    cut = [1] * len(array.shape)
    for word, axis in zip(tiling, problem.mesh, strict=True):
        if word[0] == "S":
            if int(word[1:]) >= len(cut):
                raise InputError(f"found {word} of an array of {len(cut)} axes", where=where)
            cut[int(word[1:])] *= axis.size
    if not problem.published:
        for place, (size, parts) in enumerate(zip(array.shape, cut, strict=True)):
            if size % parts:
                raise InputError(f"found axis {place} of size {size}, which {parts} workers do not divide", where=where)
