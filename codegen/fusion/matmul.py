"""Matrix products as kernels: tiles of the result, one threadblock each at a time (CoCoNet, rows 10 to 14 of the table
in section 3.3).

Each rank multiplies what it holds: its partial product where the dimension that is summed over is divided (row 10), all
of it (11, 14), its rows (12) or its columns (13). Leading dimensions of the left operand count as rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from treadle.codegen.fusion.context import Context
from treadle.codegen.fusion.expression import CPP, Scope, identifier
from treadle.codegen.fusion.kernel import ANY, KernelText
from treadle.codegen.fusion.links import TileOrder
from treadle.codegen.templates import template
from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import Dtype
from treadle.planner.machine.products import Tile, tile_of
from treadle.planner.passes.fusion.layouts import Block, Sliced
from treadle.planner.passes.fusion.program import Node, TensorType
from treadle.planner.passes.fusion.slice_maps import local_shape
from treadle.planner.passes.fusion.stages import Stage


@dataclass(frozen=True)
class RankProducts:
    """A MatMul as it runs: by rank of a group the extents of the matrices that it multiplies."""

    name: str
    dtype: Dtype
    left: int
    right: int
    result: int
    """Numbers of buffers."""
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depth: tuple[int, ...]
    tile: Tile

    @cached_property
    def tiles(self) -> tuple[int, ...]:
        """By rank: into how many tiles its result is cut."""
        return tuple(
            -(-rows // self.tile[0]) * -(-columns // self.tile[1])
            for rows, columns in zip(self.rows, self.columns, strict=True)
        )


def product(scope: Scope, node: Node, tile: Tile | None = None) -> RankProducts:
    """What the ranks multiply for `node`. Raises InputError for more than two dimensions on the right, and for slices
    that are no blocks of a dimension."""
    left, right = (scope.program.type_of(operand) for operand in node.inputs)
    if left is None or right is None or len(right.shape) != 2:
        raise InputError(f"{node.name}: found a right operand that is no matrix, expected two dimensions")
    ranks = range(scope.bindings.ranks)
    lefts, rights = ([local_extents(scope, node, type_, rank) for rank in ranks] for type_ in (left, right))
    rows = tuple(prod(shape[:-1]) for shape in lefts)
    columns = tuple(shape[1] for shape in rights)
    return RankProducts(
        name=node.name,
        dtype=node.type.dtype,
        left=scope.storage(str(node.inputs[0]))[0],
        right=scope.storage(str(node.inputs[1]))[0],
        result=scope.storage(node.name)[0],
        rows=rows,
        columns=columns,
        depth=tuple(shape[0] for shape in rights),
        tile=tile or tile_of(max(rows), max(columns), node.type.dtype),
    )


def emit(stage: Stage, context: Context) -> KernelText:
    """The kernel of a single MatMul. Raises InputError as `product` does."""
    made = product(context.scope, stage.nodes[0], context.tile)
    return KernelText(identifier(made.name), _text(made), ANY, "compute", about(made))


def overlapped(made: RankProducts, order: TileOrder, *, ready: str, done: str) -> KernelText:
    """The kernel of a product that makes its tiles in an order, while others run. `ready` and `done` are types of
    treadle_overlap.h: what a row of tiles waits for, and what a tile signals."""
    text = _text(made, order=order.text(), ready=ready, done=done)
    return KernelText(identifier(made.name), text, ANY, "compute", about(made), order.arena_bytes)


def _text(made: RankProducts, *, order: str = "", ready: str = "", done: str = "") -> str:
    return template("fusion/gemm.cu.j2").render(
        name=identifier(made.name),
        type=CPP[made.dtype],
        about=about(made),
        product=made,
        ranks=len(made.rows),
        order=order,
        ready=ready,
        done=done,
    )


def about(made: RankProducts) -> str:
    """The product in words: extents, where ranks differ the largest, and the tile."""
    extents = " x ".join(str(max(each)) for each in (made.rows, made.depth, made.columns))
    return f"{made.name}: {made.dtype} MatMul of {extents} a rank, tiles of {made.tile[0]} x {made.tile[1]}"


def local_extents(scope: Scope, node: Node, type_: TensorType, rank: int) -> tuple[int, ...]:
    """The shape of the part of a tensor that `rank` of a group holds. Raises InputError for slices that are no blocks
    of a dimension."""
    extents = scope.extents(type_.shape)
    if not isinstance(type_.layout, Sliced):
        return extents
    if type_.layout.map != Block() or type_.layout.dim < 0:
        raise InputError(f"{node.name}: found an operand in slices of {type_.layout}, expected blocks of a dimension")
    return local_shape(type_.layout, extents, scope.bindings.ranks, rank)
