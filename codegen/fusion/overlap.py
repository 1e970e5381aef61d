"""Stages that run at the same time: each starts on what the one before has finished (CoCoNet, sections 3.6 and 5.7).

Every stage is launched once, on a stream of its own; counters in the arena of each rank release it unit by unit. A
product makes its tiles in the order in which the collective behind it takes its chunks, or in that in which the
collective before it brings them; a collective keeps its own order. Sums, computations and values are those of the same
stages one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from treadle.codegen.fusion import collective, collective_stage, matmul
from treadle.codegen.fusion.collective_stage import CollectiveStage
from treadle.codegen.fusion.context import Context
from treadle.codegen.fusion.expression import Scope, identifier
from treadle.codegen.fusion.kernel import KernelText
from treadle.codegen.fusion.links import Steps, TileOrder, UnitLink, met, outputs_of, steps_of_inputs, steps_of_outputs
from treadle.codegen.fusion.matmul import RankProducts
from treadle.planner.machine.dtypes import BYTES
from treadle.planner.passes.fusion import pieces
from treadle.planner.passes.fusion.gemm_tiles import Chunk, Rectangle, TileTable, flat_chunk, tile_table
from treadle.planner.passes.fusion.layouts import Sliced
from treadle.planner.passes.fusion.program import Node
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.stages import Stage

ALIGN = 128


@dataclass(frozen=True)
class Fallback:
    """Stages that a schedule overlaps and that do not all run at the same time, and why."""

    members: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Member:
    """A stage of an overlap: a product or a collective."""

    stage: Stage
    product: RankProducts | None = None
    plan: CollectiveStage | None = None

    @cached_property
    def inputs(self) -> tuple[Steps, ...]:
        """The chunks of a collective, by rank, in the order in which it takes them."""
        assert self.plan is not None
        return steps_of_inputs(self.plan.typed, self.plan.chunking.ranks)

    @cached_property
    def outputs(self) -> tuple[Steps, ...]:
        """The same for those that it leaves at each rank."""
        assert self.plan is not None
        return steps_of_outputs(self.plan.typed, self.plan.chunking.ranks)

    def units(self, steps: Steps) -> Iterator[tuple[int, ...]]:
        """Steps of chunks as steps of units: an iteration takes all its steps before the next one begins."""
        assert self.plan is not None
        for iteration in range(self.plan.chunking.iterations):
            for step in steps:
                yield tuple(iteration * self.plan.typed.chunks + chunk for chunk in step)

    def spans(self, steps: Steps, tensor: Node, columns: int) -> tuple[Chunk, ...]:
        """Where each unit of a collective lies in a tensor whose rows have `columns` elements, counted from where the
        rank's part of it begins; () for those that the rank does not come to in `steps`."""
        assert self.plan is not None
        own = {chunk for step in steps for chunk in step}
        sliced = isinstance(tensor.type.layout, Sliced)
        found: list[Chunk] = []
        for iteration in range(self.plan.chunking.iterations):
            for chunk in range(self.plan.typed.chunks):
                piece = self.plan.chunking.piece(iteration, chunk)
                begin = piece.local if sliced else piece.begin
                if chunk not in own or not piece.count:
                    found.append(())
                elif piece.columns:
                    rows, pitch = piece.count // piece.columns, piece.local_pitch if sliced else piece.pitch
                    found.append(tuple(_rectangles(begin, rows, piece.columns, pitch, pitch if sliced else columns)))
                else:
                    found.append(flat_chunk(begin, begin + piece.count, columns))
        return tuple(found)


def _rectangles(begin: int, rows: int, width: int, pitch: int, columns: int) -> Iterator[Rectangle]:
    """Rows of `width` elements, `pitch` apart, in a matrix whose rows have `columns` elements."""
    if pitch == columns:
        yield Rectangle(begin // columns, begin % columns, rows, width)
        return
    for row in range(rows):
        yield from flat_chunk(begin + row * pitch, begin + row * pitch + width, columns)


def emit(stages: Sequence[Stage], context: Context) -> tuple[KernelText, ...]:
    """The kernels of an overlap, to be launched together. Raises TypeRefusal where a stage cannot follow the one before
    unit by unit: then they run one after the other."""
    pieces.require(context.scope.program, stages)
    members = [
        member(stage, replace(context, chunk=_shape(stages, number, context))) for number, stage in enumerate(stages)
    ]
    arena, links = context.arena, []
    for before, after in pairwise(members):
        links.append(link(before, after, context.scope, arena))
        arena += _aligned(links[-1].arena_bytes)
    kernels = []
    for number, each in enumerate(members):
        into, out = (links[at] if 0 <= at < len(links) else None for at in (number - 1, number))
        ready = f"treadle::Ready<{into.name}>" if into else "Always"
        done = f"treadle::Done<{out.name}>" if out else "Always"
        if each.plan is not None:
            kernel = collective.text(each.plan, replace(context, arena=arena), ready=ready, done=done)
        else:
            assert each.product is not None
            order = TileOrder("Order", arena, _order(members, number, into))
            kernel = matmul.overlapped(each.product, order, ready=ready, done=done)
        arena += _aligned(kernel.arena_bytes)
        kernels.append(kernel)
    tables = "".join(each.text() for each in links)
    rest = sum(_aligned(kernel.arena_bytes) for kernel in kernels[1:])
    first = replace(kernels[0], text=tables + kernels[0].text, arena_bytes=arena - context.arena - rest)
    return (first, *kernels[1:])


def member(stage: Stage, context: Context) -> Member:
    """Raises TypeRefusal for an algorithm that stores a chunk twice."""
    if pieces.multiplies(stage):
        return Member(stage, product=matmul.product(context.scope, stage.nodes[0], context.tile))
    plan = collective_stage.collective_stage(stage, context)
    for lanes in plan.typed.lanes:
        stored = [chunk for lane in lanes for move in lane.steps for chunk in outputs_of(move)]
        if len(stored) > len(set(stored)):
            raise TypeRefusal(stage.name, pieces.ROW, "found an algorithm that stores a chunk twice, expected once")
    return Member(stage, plan=plan)


def _shape(stages: Sequence[Stage], number: int, context: Context) -> tuple[int, int] | None:
    """Rows and columns that a collective before or after a product moves at once: after it, wide ones that need few of
    its tiles; before it, whole rows, as it reads them (CoCoNet, section 5.3)."""
    sides = [stages[at] if 0 <= at < len(stages) else None for at in (number - 1, number + 1)]
    before, after = (side if side is not None and side.kind == "matmul" else None for side in sides)
    if stages[number].kind == "matmul" or (before is None and after is None):
        return None
    product = matmul.product(context.scope, (before or after).nodes[0], context.tile)  # type: ignore[union-attr]
    most = context.slot_bytes // BYTES[product.dtype]
    (height, width), pitch = product.tile, max(product.columns if before else product.depth)
    columns = min(pitch, max(width, most // height // width * width)) if before else pitch
    rows = max(1, most // columns)
    return (rows // height * height if rows > height else rows), columns


def link(before: Member, after: Member, scope: Scope, arena: int) -> UnitLink:
    """Which units of `before` those of `after` wait for."""
    tensor = pieces.handed_on(scope.program, before.stage, after.stage)
    columns = scope.extents(tensor.type.shape)[-1]
    feeds, units = [], 0
    for rank in range(scope.bindings.ranks):
        taken = _taken(after, tensor, columns, rank)
        units = max(units, len(taken))
        if before.product is not None and after.plan is not None:
            table = _table(before.product, after, tensor, rank)
            feeds.append(tuple(table.fed_by(tile) for tile in range(len(table.order))))
        else:
            feeds.append(met(before.spans(before.outputs[rank], tensor, columns), taken))
    alike = (feeds[0],) if len(set(feeds)) == 1 else tuple(feeds)
    return UnitLink(f"{identifier(before.stage.name)}_to_{identifier(after.stage.name)}", arena, alike, units)


def _taken(after: Member, tensor: Node, columns: int, rank: int) -> tuple[Chunk, ...]:
    """Where the units of a stage lie in what it takes: chunks, or whole rows of tiles."""
    if after.product is None:
        return after.spans(after.inputs[rank], tensor, columns)
    rows, depth, height = after.product.rows[rank], after.product.depth[rank], after.product.tile[0]
    return tuple((Rectangle(row, 0, min(height, rows - row), depth),) for row in range(0, rows, height))


# Orders of tiles.


def _table(product: RankProducts, after: Member, tensor: Node, rank: int) -> TileTable:
    """The tiles of a product at one rank, in the order in which the collective behind it takes what they feed."""
    chunks = after.spans(after.inputs[rank], tensor, product.columns[rank])
    steps = list(after.units(after.inputs[rank]))
    taken = {unit for step in steps for unit in step}
    steps.append(tuple(unit for unit in range(len(chunks)) if unit not in taken))
    return tile_table(product.rows[rank], product.columns[rank], product.tile, chunks, steps)


def _order(members: Sequence[Member], number: int, into: UnitLink | None) -> tuple[tuple[int, ...], ...]:
    """By rank, the order in which a product makes its tiles."""
    product = members[number].product
    assert product is not None
    ranks = range(len(product.rows))
    if into is not None:
        return tuple(_arriving(product, members[number - 1], into, rank) for rank in ranks)
    tensor = members[number].stage.nodes[0]
    return tuple(_table(product, members[number + 1], tensor, rank).order for rank in ranks)


def _arriving(product: RankProducts, before: Member, into: UnitLink, rank: int) -> tuple[int, ...]:
    """Tiles in the order in which the rows that they read arrive."""
    feeds = into.feeds[rank % len(into.feeds)]
    complete = [0] * into.units
    for time, step in enumerate(before.units(before.outputs[rank])):
        for row in (row for unit in step for row in feeds[unit]):
            complete[row] = time
    across = -(-product.columns[rank] // product.tile[1])
    return tuple(sorted(range(product.tiles[rank]), key=lambda tile: (complete[tile // across], tile)))


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
