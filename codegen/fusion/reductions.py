"""Norm and ReduceTensor over whole tensors, or along a dimension that is not the last, with what is computed from them
(CoCoNet, section 5.6).

Such a kernel has phases: the elements are reduced, all blocks of a rank synchronise, one of them joins their results
and exchanges them with the other ranks where each has a slice, and all synchronise again. The last phase recomputes
what it stores, from tensors that nothing has overwritten so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from treadle.codegen.fusion import rows
from treadle.codegen.fusion.broadcast import EndTable, part_ends
from treadle.codegen.fusion.context import Context
from treadle.codegen.fusion.expression import CPP, Functor, Scope, functor, identifier
from treadle.codegen.fusion.kernel import KernelText
from treadle.codegen.fusion.pointwise import condition, live_outs
from treadle.codegen.fusion.slices import slice_type
from treadle.codegen.templates import template
from treadle.planner.passes.fusion.layouts import Block, Replicated, Sliced
from treadle.planner.passes.fusion.program import Node
from treadle.planner.passes.fusion.slice_maps import capacity
from treadle.planner.passes.fusion.stages import Stage, kind

SHARE = 1 << 14
"""Elements that a threadblock should have to reduce."""
MOST_BLOCKS = 64
"""All of them must be resident at the same time, as they wait for each other."""
LINE = 128
TOTAL_BYTES = 8


@dataclass(frozen=True)
class Reduction:
    """One Norm or ReduceTensor: `count` values; offsets are those of the arena."""

    name: str
    type: str
    kind: str
    functor: Functor
    slice: str
    count: int
    ends: str
    exchanged: bool
    flags: int
    slots: int
    partial: int
    totals: int
    values: int
    along: str = ""
    """The C++ type of this rank's part of the reduced dimension, if any."""
    result: str = ""
    extent: int = 0
    inner: int = 0


@dataclass(frozen=True)
class Final:
    """Values of one shape that the last phase computes and stores."""

    functor: Functor
    slice: str


def emit(stage: Stage, context: Context) -> KernelText:
    """The kernel of a stage with reductions: of rows, or in phases."""
    if rows.fits(stage, context.scope):
        return rows.emit(stage, context)
    scope, program = context.scope, context.scope.program
    pointwise = [node for node in stage.nodes if kind(node) != "reduction"]
    arena = Arena(context.arena)
    counter = arena.take(LINE)
    blocks = blocks_of(scope, stage)
    reduced: dict[str, int] = {}
    tables: list[EndTable] = []
    levels = levels_of(stage, scope, arena, blocks, reduced, tables)
    finals = finals_of(stage, pointwise, scope, reduced, live_outs(program, stage.nodes))
    about = f"{stage.name}: {', '.join(stage.named)}; {len(levels) + bool(finals)} phases"
    text = template("fusion/reductions.cu.j2").render(
        name=stage.name,
        about=about,
        tables=tables,
        functors=[*(each.functor for level in levels for each in level), *(each.functor for each in finals)],
        counter=counter,
        levels=levels,
        finals=finals,
        condition=condition(scope, program.by_name[stage.nodes[-1].name].type),
        ranks=scope.bindings.ranks,
    )
    return KernelText(stage.name, text, blocks, "compute", about, arena.end - context.arena)


def levels_of(
    stage: Stage, scope: Scope, arena: Arena, blocks: int, reduced: dict[str, int], tables: list[EndTable]
) -> list[list[Reduction]]:
    """The reductions of a kernel of `blocks`, phase by phase. `reduced` are values at offsets of the arena: those that
    come out join it. `tables` are added to."""
    pointwise = [node for node in stage.nodes if kind(node) == "pointwise"]
    levels: list[list[Reduction]] = []
    for nodes in by_level(stage.nodes):
        known = dict(reduced)
        made = [_reduction(stage, node, pointwise, scope, known, arena, blocks, tables) for node in nodes]
        levels.append(made)
        reduced.update((each.name, each.values) for each in made)
    return levels


def by_level(nodes: Sequence[Node]) -> list[list[Node]]:
    """The reductions among nodes in running order, those together that wait for the same ones."""
    levels: dict[str, int] = {}
    for node in nodes:
        levels[node.name] = max((levels[name] for name in node.reads if name in levels), default=0)
        levels[node.name] += kind(node) == "reduction"
    reductions = [node for node in nodes if kind(node) == "reduction"]
    return [
        [node for node in reductions if levels[node.name] == level]
        for level in sorted({levels[node.name] for node in reductions})
    ]


class Arena:
    """Hands out parts of the arena, each on cache lines of its own."""

    def __init__(self, begin: int) -> None:
        self.end = begin

    def take(self, size: int) -> int:
        begin = self.end
        self.end += -(-size // LINE) * LINE
        return begin


def blocks_of(scope: Scope, stage: Stage) -> int:
    most = max(prod(scope.extents(node.type.shape)) for node in stage.nodes)
    sources = [scope.program.by_name[name].type.shape for node in stage.nodes for name in node.reads]
    most = max([most, *(prod(scope.extents(shape)) for shape in sources)])
    return max(1, min(MOST_BLOCKS, -(-most // SHARE)))


def _reduction(
    stage: Stage,
    node: Node,
    pointwise: Sequence[Node],
    scope: Scope,
    reduced: dict[str, int],
    arena: Arena,
    blocks: int,
    tables: list[EndTable],
) -> Reduction:
    of = scope.program.by_name[str(node.inputs[0])].type
    ranks, extents, results = scope.bindings.ranks, scope.extents(of.shape), scope.extents(node.type.shape)
    count = capacity(node.type.layout, results, ranks) if isinstance(node.type.layout, Sliced) else prod(results)
    exchanged = isinstance(of.layout, Sliced) and isinstance(node.type.layout, Replicated) and ranks > 1
    ends = "nullptr"
    if node.attribute("per") == "tensor":
        tables.append(part_ends(scope.bindings, f"{stage.name}_{identifier(node.name)}_parts", of.shape[0]))
        ends = tables[-1].name
    along: dict[str, str | int] = {}
    dim = node.attribute("dim")
    if isinstance(dim, int):
        layout = of.layout if isinstance(of.layout, Sliced) and of.layout.dim == dim else None
        along = {
            "along": slice_type(Sliced(0, Block()) if layout else Replicated(), extents[dim : dim + 1], ranks),
            "result": slice_type(node.type.layout, results, ranks),
            "extent": extents[dim],
            "inner": prod(extents[dim + 1 :]),
        }
    return Reduction(
        name=node.name,
        type=CPP[node.type.dtype],
        kind=rows.combination(node),
        functor=functor(scope, f"{stage.name}_{node.name}", pointwise, result=str(node.inputs[0]), reduced=reduced),
        slice=slice_type(of.layout, extents, ranks),
        count=count,
        ends=ends,
        exchanged=exchanged,
        flags=arena.take(ranks * LINE) if exchanged else 0,
        slots=arena.take(2 * ranks * count * TOTAL_BYTES) if exchanged else 0,
        partial=arena.take((count + blocks) * TOTAL_BYTES) if not along else 0,
        totals=arena.take(count * TOTAL_BYTES),
        values=arena.take(count * TOTAL_BYTES),
        **along,  # type: ignore[arg-type]
    )


def finals_of(
    stage: Stage, pointwise: Sequence[Node], scope: Scope, reduced: dict[str, int], kept: Sequence[str]
) -> list[Final]:
    """The stores of what is `kept`, those of one shape together."""
    shapes: dict[object, list[str]] = {}
    for name in kept:
        shapes.setdefault(scope.program.by_name[name].type.shape, []).append(name)
    finals = []
    for number, stores in enumerate(shapes.values()):
        of = scope.program.by_name[stores[0]].type
        made = functor(scope, f"{stage.name}_elements_{number}", pointwise, stores=stores, reduced=reduced)
        finals.append(Final(made, slice_type(of.layout, scope.extents(of.shape), scope.bindings.ranks)))
    return finals
