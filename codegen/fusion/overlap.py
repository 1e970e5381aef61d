"""Stages that run at the same time: each starts on what the one before has finished (CoCoNet, sections 3.6 and 5.7).

Every stage is launched once, on a stream of its own; counters in the arena of each rank release it unit by unit. A
product makes its tiles in the order in which the collective behind it takes its chunks, or in that in which the
collective before it brings them; a collective keeps its own order. Sums, computations and values are those of the same
stages one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from codegen.fusion import collective, matmul
from codegen.fusion.collective import Plan
from codegen.fusion.context import Context
from codegen.fusion.expression import Scope, identifier
from codegen.fusion.kernel import KernelText
from codegen.fusion.links import Link, Order, met, steps_of_inputs, steps_of_outputs
from codegen.fusion.matmul import Product
from planner.fusion.gemm_tiles import Chunk, Rectangle, TileTable, flat_chunk, tile_table
from planner.fusion.layouts import Sliced
from planner.fusion.program import Node
from planner.fusion.refusal import TypeRefusal
from planner.fusion.stages import Stage

ROW = "4.5"
ALIGN = 128

Steps = Sequence[Sequence[int]]
"""Numbers of units in the order in which a rank comes to them, those of one step together."""


@dataclass(frozen=True)
class Fallback:
    """Stages that a schedule overlaps and that run one after the other, and why."""

    members: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Member:
    """A stage of an overlap: a product or a collective."""

    stage: Stage
    product: Product | None = None
    plan: Plan | None = None


def emit(stages: Sequence[Stage], context: Context) -> tuple[KernelText, ...]:
    """The kernels of an overlap, to be launched together.

    Raises TypeRefusal where a stage cannot follow the one before unit by unit: then they run one after the other.
    """
    members = [member(stage, context) for stage in stages]
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
            order = Order("Order", arena, _order(members, number, into))
            kernel = matmul.overlapped(each.product, order, ready=ready, done=done)
        arena += _aligned(kernel.arena_bytes)
        kernels.append(kernel)
    tables = "".join(each.text() for each in links)
    rest = sum(_aligned(kernel.arena_bytes) for kernel in kernels[1:])
    first = replace(kernels[0], text=tables + kernels[0].text, arena_bytes=arena - context.arena - rest)
    return (first, *kernels[1:])


def member(stage: Stage, context: Context) -> Member:
    """Raises TypeRefusal for a stage that neither multiplies nor communicates."""
    if stage.kind == "matmul":
        return Member(stage, product=matmul.product(context.scope, stage.nodes[0], context.tile))
    if not any(node.op in collective.PROGRAMS for node in stage.nodes):
        raise TypeRefusal(stage.name, ROW, f"found a {stage.kind} kernel, expected a product or a collective")
    plan = collective.plan(stage, context)
    if plan.anatomy.permute is not None:
        raise TypeRefusal(stage.name, ROW, "found rows in the order of an index, expected chunks in their own order")
    return Member(stage, plan=plan)


def link(before: Member, after: Member, scope: Scope, arena: int) -> Link:
    """Which units of `before` those of `after` wait for. Raises TypeRefusal when that cannot be told unit by unit."""
    tensor = between(before, after, scope)
    feeds, units = [], 0
    for rank in range(scope.bindings.ranks):
        taken = _taken(after, before, tensor, rank)
        units = len(taken)
        if before.product is not None and after.plan is not None:
            table = _table(before.product, after.plan, tensor, rank)
            feeds.append(tuple(table.fed_by(tile) for tile in range(len(table.order))))
        else:
            feeds.append(met(_made(before, after, tensor, rank), taken))
    alike = (feeds[0],) if len(set(feeds)) == 1 else tuple(feeds)
    return Link(f"{identifier(before.stage.name)}_to_{identifier(after.stage.name)}", arena, alike, units)


def between(before: Member, after: Member, scope: Scope) -> Node:
    """The value that goes from one stage to the other. Raises TypeRefusal when it is none, several or another one than
    what the units of both are parts of."""
    inside = {node.name: node for node in before.stage.nodes}
    read = sorted({name for node in after.stage.nodes for name in node.reads if name in inside})
    last = before.plan.anatomy.last if before.plan is not None else None
    handed = {last.name} if last is not None else set(inside)
    taken = after.stage.nodes[0].inputs[:1] if after.plan is None else None
    if len(read) != 1 or read[0] not in handed or (taken is not None and taken != (read[0],)):
        raise TypeRefusal(
            after.stage.name,
            ROW,
            f"found {', '.join(read) or 'nothing'} read from {before.stage.name}, expected the one value that it hands "
            "on chunk by chunk" + (", as the left operand" if taken is not None else ""),
        )
    tensor = inside[read[0]]
    product = before.product or after.product
    if product is not None and isinstance(tensor.type.layout, Sliced) and tensor.type.layout.dim != 0:
        raise TypeRefusal(after.stage.name, ROW, f"found {tensor.name} in slices of columns, expected whole rows")
    return tensor


# Units: where each one lies in the tensor between two stages, counted from where the rank's part begins; () for those
# that the rank does not come to.


def _made(before: Member, after: Member, tensor: Node, rank: int) -> tuple[Chunk, ...]:
    assert before.plan is not None
    columns = after.product.depth[rank] if after.product is not None else 1
    return chunks_of(before.plan, steps_of_outputs(before.plan.moves)[rank], tensor, columns)


def _taken(after: Member, before: Member, tensor: Node, rank: int) -> tuple[Chunk, ...]:
    if after.plan is not None:
        columns = before.product.columns[rank] if before.product is not None else 1
        return chunks_of(after.plan, steps_of_inputs(after.plan.moves)[rank], tensor, columns)
    product = after.product
    assert product is not None
    rows, depth = product.rows[rank], product.depth[rank]
    if before.product is not None:
        raise TypeRefusal(after.stage.name, ROW, "found a product behind another, expected a collective between")
    height = product.tile[0]
    return tuple((Rectangle(row, 0, min(height, rows - row), depth),) for row in range(0, max(product.rows), height))


def chunks_of(plan: Plan, steps: Steps, tensor: Node, columns: int) -> tuple[Chunk, ...]:
    """The units of a collective at one rank, of which it comes to those of `steps`, in a tensor of so many columns."""
    own = {chunk for step in steps for chunk in step}
    sliced = isinstance(tensor.type.layout, Sliced)
    found = []
    for iteration in range(plan.chunking.iterations):
        for chunk in range(plan.moves.chunks):
            glob, local, count = plan.chunking.chunk(iteration, chunk)
            begin = local if sliced else glob
            found.append(flat_chunk(begin, begin + count, columns) if chunk in own and count else ())
    return tuple(found)


def _numbered(plan: Plan, steps: Steps) -> Iterator[tuple[int, ...]]:
    """Steps of chunks as steps of units: an iteration takes all its steps before the next one begins."""
    for iteration in range(plan.chunking.iterations):
        for step in steps:
            yield tuple(iteration * plan.moves.chunks + chunk for chunk in step)


# Orders of tiles.


def _table(product: Product, plan: Plan, tensor: Node, rank: int) -> TileTable:
    """The tiles of a product at one rank, in the order in which the collective behind it takes what they feed."""
    steps = steps_of_inputs(plan.moves)[rank]
    chunks = chunks_of(plan, steps, tensor, product.columns[rank])
    numbered = list(_numbered(plan, steps))
    taken = {unit for step in numbered for unit in step}
    numbered.append(tuple(unit for unit in range(len(chunks)) if unit not in taken))
    return tile_table(product.rows[rank], product.columns[rank], product.tile, chunks, numbered)


def _order(members: Sequence[Member], number: int, into: Link | None) -> tuple[tuple[int, ...], ...]:
    """By rank, the order in which a product makes its tiles."""
    product = members[number].product
    assert product is not None
    ranks = range(len(product.rows))
    before = members[number - 1].plan if number else None
    if before is not None and into is not None:
        return tuple(_arriving(product, before, into, rank) for rank in ranks)
    after = members[number + 1].plan
    assert after is not None
    return tuple(_table(product, after, members[number].stage.nodes[0], rank).order for rank in ranks)


def _arriving(product: Product, plan: Plan, into: Link, rank: int) -> tuple[int, ...]:
    """Tiles in the order in which the rows that they read arrive."""
    feeds = into.feeds[rank % len(into.feeds)]
    complete = [0] * into.units
    for time, step in enumerate(_numbered(plan, steps_of_outputs(plan.moves)[rank])):
        for unit in step:
            for row in feeds[unit]:
                complete[row] = time
    across = -(-product.columns[rank] // product.tile[1])
    return tuple(sorted(range(product.tiles[rank]), key=lambda tile: (complete[tile // across], tile)))


def _aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
