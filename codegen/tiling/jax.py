"""Target `jax`: the tilings of a plan as a mesh and a PartitionSpec for each array, as a module for JAX.

JAX cuts axes into equal parts only, and keeps partial results to itself. Arrays that it cannot hold so are listed with
the reason. A tiling of blocks needs two axes where the plan has one: its workers are a grid in all specifications then.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from treadle.codegen.interface import Made
from treadle.codegen.python_text import constants
from treadle.codegen.templates import template
from treadle.planner.documents.plan import Plan
from treadle.planner.documents.scalars import many
from treadle.planner.passes.tiling.decisions import TilingDecisions
from treadle.planner.passes.tiling.problem import ArrayTiling, TilingProblem
from treadle.planner.passes.tiling.tile_maps import copies, grid

FILE_NAME = "shardings.py"
Spec = list[list[str]]
"""For each axis of an array the axes of the mesh that cut it."""


class MeshAxes(NamedTuple):
    """Axes of JAX's mesh; `of[place]` are those that an axis of the plan's mesh became."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    of: tuple[tuple[str, ...], ...]


def shardings(plan: Plan[TilingDecisions]) -> Made:
    """The module, and the facts of its manifest."""
    decisions = plan.decisions
    problem, axes = decisions.problem, mesh_of(decisions)
    specs, seconds, left = dict[str, Spec](), dict[str, Spec](), dict[str, str]()
    for array, tiling in zip(problem.arrays, decisions.tilings, strict=True):
        first, second = (tuple(copies(word)[copy] for word in tiling) for copy in (0, -1))
        reason = next(_left(array.shape, [first, second], axes), None)
        if reason is not None:
            left[array.id] = reason
            continue
        specs[array.id] = spec_of(array.shape, first, axes)
        if second != first:
            seconds[array.id] = spec_of(array.shape, second, axes)
    text = template("tiling/jax.py.j2").render(
        name=problem.name,
        workers=many(prod(axes.sizes), "worker"),
        left=bool(left),
        copies=bool(seconds),
        tables=[*constants(AXES=axes.names, SIZES=axes.sizes, SPECS=specs, SECOND=seconds, LEFT=left)],
    )
    facts = {"mesh": dict(zip(axes.names, axes.sizes, strict=True)), "arrays": len(specs), "left": len(left)}
    return Made({FILE_NAME: text}, facts)


def mesh_of(decisions: TilingDecisions) -> MeshAxes:
    """The plan's mesh; a single axis with blocks is a grid of rows and columns, in the order of its workers."""
    mesh = decisions.problem.mesh
    names = _distinct(decisions.problem)
    if len(mesh) == 1 and ("B",) in decisions.tilings:
        axes = (f"{names[0]}_rows", f"{names[0]}_columns")
        return MeshAxes(axes, grid(mesh[0].size), (axes,))
    return MeshAxes(names, tuple(axis.size for axis in mesh), tuple((name,) for name in names))


def _distinct(problem: TilingProblem) -> tuple[str, ...]:
    """Names of the mesh's axes, numbered where two are the same."""
    names = [axis.name for axis in problem.mesh]
    return tuple(f"{name}_{place}" if names.count(name) > 1 else name for place, name in enumerate(names))


def spec_of(shape: tuple[int, ...], tiling: ArrayTiling, axes: MeshAxes) -> Spec:
    """For each axis of the array, the axes of the mesh that cut it, the first of them first."""
    spec: Spec = [[] for _ in shape]
    for names, word in zip(axes.of, tiling, strict=True):
        if word == "B":
            spec[0] += names[:1]
            spec[1] += names[1:]
        elif word.startswith("S") and shape:
            spec[int(word[1:])] += names
    return spec


def _left(shape: tuple[int, ...], tilings: list[ArrayTiling], axes: MeshAxes) -> Iterator[str]:
    """Why JAX cannot hold an array so."""
    sizes = dict(zip(axes.names, axes.sizes, strict=True))
    for tiling in tilings:
        if "P" in tiling:
            yield "a partial result on each worker"
            return
        for size, names in zip(shape, spec_of(shape, tiling, axes), strict=True):
            parts = prod(sizes[name] for name in names)
            if size % parts:
                yield f"an axis of {size} does not divide into {parts} equal parts"
