"""Overlapped schedules that tests, stress runs and mutations share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from treadle.codegen.fusion.lower import Lowered, lower
from treadle.planner.passes.fusion import language as cc
from treadle.planner.passes.fusion.layouts import FLAT, Block, RingTile
from treadle.planner.passes.fusion.program import Bindings, Program


def tail(*, fused: bool = True, overlapped: bool = True, dtype: str = "f32", tiles: RingTile | None = None) -> Program:
    """The tail of self-attention: a product and the fused allreduce behind it (CoCoNet, section 3.6)."""
    b, s, h = cc.dims("B", "S", "H")
    w = cc.Tensor("w", dtype, [h, h], cc.Sliced(0))
    bias = cc.Tensor("b", dtype, [h], cc.Replicated)
    x = cc.Tensor("x", dtype, [b, s, h], cc.Sliced(2))
    r = cc.Tensor("r", dtype, [b, s, h], cc.Replicated)
    layer = cc.MatMul(x, w)
    if not fused:
        total = cc.AllReduce("+", layer)
        out = cc.Dropout(total + bias, 0.5, key="attention") + r
        if overlapped:
            ol = cc.overlap(layer, total)
        return cc.Execute("tail", [w, bias, x, r], [out])
    of = tiles or Block()
    rs = cc.ReduceScatter("+", layer, dim=FLAT, map=of)
    d = cc.Dropout(rs + bias, 0.5, key="attention")
    out = d + cc.Slice(r, dim=FLAT, map=of)
    ag = cc.AllGather(out)
    far = cc.fuse("AllReduceFuse", rs, d, out, ag)
    if overlapped:
        ol = cc.overlap(layer, far)  # noqa: F841
    return cc.Execute("tail", [w, bias, x, r], [ag])


def matmul_rs() -> Program:
    t, f, h = cc.dims("T", "F", "H")
    x = cc.Tensor("x", cc.f32, [t, f], cc.Sliced(1))
    w = cc.Tensor("w", cc.f32, [f, h], cc.Sliced(0))
    y = cc.MatMul(x, w)
    rs = cc.ReduceScatter("+", y, dim=0)
    ol = cc.overlap(y, rs)  # noqa: F841
    return cc.Execute("matmul_rs", [x, w], [rs])


def ag_matmul() -> Program:
    t, f, h = cc.dims("T", "F", "H")
    x = cc.Tensor("x", cc.f32, [t, h], cc.Sliced(0))
    w = cc.Tensor("w", cc.f32, [h, f], cc.Sliced(1))
    rows = cc.AllGather(x)
    out = cc.MatMul(rows, w)
    ol = cc.overlap(rows, out)  # noqa: F841
    return cc.Execute("ag_matmul", [x, w], [out])


def matmul_ag() -> Program:
    """Each rank has its rows of the product."""
    t, f, h = cc.dims("T", "F", "H")
    x = cc.Tensor("x", cc.f32, [t, h], cc.Sliced(0))
    w = cc.Tensor("w", cc.f32, [h, f], cc.Replicated)
    y = cc.MatMul(x, w)
    out = cc.AllGather(y)
    ol = cc.overlap(y, out)  # noqa: F841
    return cc.Execute("matmul_ag", [x, w], [out])


def ag_columns() -> Program:
    """Gathered along the middle of three dimensions: each row of the product's tiles takes pieces of all ranks."""
    b, s, h, f = cc.dims("B", "S", "H", "F")
    x = cc.Tensor("x", cc.f32, [b, s, h], cc.Sliced(1))
    w = cc.Tensor("w", cc.f32, [h, f], cc.Local)
    rows = cc.AllGather(x)
    out = cc.MatMul(rows, w)
    ol = cc.overlap(rows, out)  # noqa: F841
    return cc.Execute("ag_columns", [x, w], [out])


def rs_columns() -> Program:
    """The columns of a product are scattered, computed on and gathered."""
    t, f, h = cc.dims("T", "F", "H")
    x = cc.Tensor("x", cc.f32, [t, f], cc.Sliced(1))
    w = cc.Tensor("w", cc.f32, [f, h], cc.Sliced(0))
    y = cc.MatMul(x, w)
    rs = cc.ReduceScatter("+", y, dim=1)
    out = rs + 1.0
    scattered = cc.fuse("ReduceScatterFuse", rs, out)
    ag = cc.AllGather(out)
    ol = cc.overlap(y, scattered, ag)  # noqa: F841
    return cc.Execute("rs_columns", [x, w], [ag])


def three() -> Program:
    """A product between two collectives."""
    t, f, h = cc.dims("T", "F", "H")
    x = cc.Tensor("x", cc.f32, [t, h], cc.Sliced(0))
    w = cc.Tensor("w", cc.f32, [h, f], cc.Local)
    rows = cc.AllGather(x)
    y = cc.MatMul(rows, w)
    rs = cc.ReduceScatter("+", y, dim=0)
    ol = cc.overlap(rows, y, rs)  # noqa: F841
    return cc.Execute("three", [x, w], [rs])


def pipeline(*, overlapped: bool = True, fused: bool = True) -> Program:
    """From one group to the next: RS, computation and send, AG there (CoCoNet, section 3.6)."""
    b, s, h = cc.dims("B", "S", "H")
    y = cc.Tensor("y", cc.f32, [b, s, h], cc.Local, cc.GROUP)
    bias = cc.Tensor("b", cc.f32, [h], cc.Replicated, cc.GROUP)
    r = cc.Tensor("r", cc.f32, [b, s, h], cc.Replicated, cc.GROUP)
    rs = cc.ReduceScatter("+", y)
    d = cc.Dropout(rs + bias, 0.5, key="mlp")
    c = d + cc.Slice(r)
    o = cc.Send(c, cc.GroupRank(cc.GROUP + 1, cc.RANK))
    ag = cc.AllGather(o)
    if fused:
        send = cc.fuse("SendFuse", d, c, o)
        if overlapped:
            ol = cc.overlap(rs, send, ag)  # noqa: F841
    return cc.Execute("pipeline", [y, bias, r], [ag])


@dataclass(frozen=True)
class Overlapped:
    """A schedule, its sizes, and how it is lowered. By default extents do not divide by ranks, tiles or slots."""

    program: Callable[[], Program]
    ranks: int
    groups: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=lambda: {"B": 2, "S": 11, "H": 27, "T": 29, "F": 13})

    @property
    def bindings(self) -> Bindings:
        names = {name for value in self.program().inputs for dim in value.type.shape for name in dim.names}
        return Bindings({name: self.extents[name] for name in sorted(names)}, self.ranks, self.groups)

    def lowered(self) -> Lowered:
        return lower(self.program(), self.bindings, **{"tile": (8, 16), "slot_bytes": 512, **self.options})


CASES = {
    "tail of two": Overlapped(tail, 2),
    "tail of three": Overlapped(tail, 3, options={"tile": (16, 8), "slot_bytes": 96}),
    "tail of four, two channels": Overlapped(tail, 4, options={"channels": 2}),
    "tail, all pairs": Overlapped(tail, 4, options={"algorithm": "all-pairs"}),
    "tail, LL": Overlapped(tail, 3, options={"protocol": "LL"}),
    "tail, f16": Overlapped(lambda: tail(dtype="f16"), 3, options={"tile": (8, 8)}),
    "tail, rectangles": Overlapped(
        tail, 3, options={"tile": (4, 8), "slot_bytes": 256, "channels": 2}, extents={"B": 2, "S": 11, "H": 40}
    ),
    "tail, ring tiles, LL": Overlapped(lambda: tail(tiles=RingTile(2, 24, 4)), 3, options={"protocol": "LL"}),
    "tail, unfused": Overlapped(lambda: tail(fused=False), 3),
    "tail, LL, tree": Overlapped(lambda: tail(fused=False), 4, options={"algorithm": "double-tree", "protocol": "LL"}),
    "matmul and RS": Overlapped(matmul_rs, 3),
    "matmul and AG": Overlapped(matmul_ag, 3),
    "AG and matmul": Overlapped(ag_matmul, 4),
    "AG and matmul, all pairs": Overlapped(ag_matmul, 3, options={"algorithm": "all-pairs"}),
    "AG of columns and matmul": Overlapped(ag_columns, 3, options={"slot_bytes": 96}),
    "matmul, RS and AG of columns": Overlapped(rs_columns, 3, options={"channels": 2}),
    "AG, matmul and RS": Overlapped(three, 3),
    "pipeline of two groups": Overlapped(pipeline, 2, 2, options={"slot_bytes": 128}),
    "pipeline of three groups": Overlapped(pipeline, 3, 3),
}
