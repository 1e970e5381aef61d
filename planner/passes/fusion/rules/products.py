"""Rows 10 to 17 and 33: MatMul, Conv2d and Permute, whose results depend on more than the same elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from treadle.planner.passes.fusion.dims import Dim, dim, shape_text
from treadle.planner.passes.fusion.layouts import Layout, Local, Replicated, Sliced
from treadle.planner.passes.fusion.program import Attribute, TensorType
from treadle.planner.passes.fusion.rules.operands import check_numbers, common_group, layouts_text, refuse, whole_number


def product(op: str, x: TensorType, w: TensorType, given: Mapping[str, Attribute]) -> TensorType:
    """The type of a MatMul, Conv2d or Permute with these attributes. Raises TypeRefusal."""
    common_group(op, (x, w), "group")
    match op:
        case "MatMul":
            return _matmul(x, w)
        case "Conv2d":
            return _conv2d(x, w, given)
        case _:
            return _permute(x, w)


def _matmul(x: TensorType, w: TensorType) -> TensorType:
    check_numbers("MatMul", (x, w))
    if len(x.shape) < 2 or len(w.shape) != 2 or x.shape[-1] != w.shape[0]:
        shown = f"{shape_text(x.shape)} and {shape_text(w.shape)}"
        refuse("MatMul", "shape", f"found shapes {shown}, expected [.., M, K] and [K, N]")
    last = len(x.shape) - 1
    layout: Layout
    match x.layout, w.layout:
        case Sliced(d, x_map), Sliced(0, w_map) if d == last and x_map == w_map:
            layout = Local()
        case Replicated(), Replicated():
            layout = Replicated()
        case Sliced(d, _), Replicated() if 0 <= d < last:
            layout = x.layout
        case Replicated(), Sliced(1, _):
            layout = replace(w.layout, dim=last)
        case (Local(), Replicated() | Local()) | (Replicated(), Local()):
            layout = Local()
        case _:
            refuse(
                "MatMul",
                "15",
                f"found {layouts_text((x, w))}, expected the contracted dimension of both sliced, or one whole",
            )
    return TensorType(x.dtype, (*x.shape[:-1], w.shape[1]), layout, x.group)


def _conv2d(x: TensorType, w: TensorType, given: Mapping[str, Attribute]) -> TensorType:
    check_numbers("Conv2d", (x, w))
    if len(x.shape) != 4 or len(w.shape) != 4 or x.shape[1] != w.shape[1]:
        shown = f"{shape_text(x.shape)} and {shape_text(w.shape)}"
        refuse("Conv2d", "shape", f"found shapes {shown}, expected [N, C, H, W] and [Cout, C, h, w]")
    padding, stride = (whole_number("Conv2d", name, given[name]) for name in ("padding", "stride"))
    spatial = tuple(_convolved(x.shape[at], w.shape[at], padding, stride) for at in (2, 3))
    layout: Layout
    match x.layout, w.layout:
        case Sliced(1, x_map), Sliced(1, w_map) if x_map == w_map:
            layout = Local()
        case Sliced(0, _), Replicated():
            layout = x.layout
        case Replicated(), Sliced(0, _):
            layout = replace(w.layout, dim=1)
        case Replicated(), Replicated():
            layout = Replicated()
        case (Local(), Replicated() | Local()) | (Replicated(), Local()):
            layout = Local()
        case Sliced(d, _), _ if d in (2, 3):
            refuse(
                "Conv2d", "17b", "found an image sliced in space, which needs its neighbours' rows; expected it whole"
            )
        case _:
            refuse("Conv2d", "16", f"found {layouts_text((x, w))}, expected both sliced along C, or one of them whole")
    return TensorType(x.dtype, (x.shape[0], w.shape[0], *spatial), layout, x.group)


def _convolved(image: Dim, kernel: Dim, padding: int, stride: int) -> Dim:
    if stride < 1 or padding < 0:
        refuse("Conv2d", "shape", f"found stride {stride} and padding {padding}, expected at least 1 and 0")
    if kernel.names:
        refuse("Conv2d", "shape", f"found a kernel of extent {kernel}, expected a number")
    if not image.names:
        extent = (image.factor + 2 * padding - kernel.factor) // stride + 1
        if extent < 1:
            refuse("Conv2d", "shape", f"found a kernel of {kernel} for an image of {image}, expected a smaller one")
        return dim(extent)
    if stride != 1 or 2 * padding != kernel.factor - 1:
        refuse(
            "Conv2d", "shape", f"found extent {image}, expected a number, or stride 1 and padding {kernel.factor // 2}"
        )
    return image


def _permute(x: TensorType, index: TensorType) -> TensorType:
    if index.dtype not in ("i32", "i64") or len(index.shape) != 1 or not x.shape:
        shown = f"{index.dtype} {shape_text(index.shape)}"
        refuse("Permute", "shape", f"found an index that is {shown}, expected whole numbers for the rows of a tensor")
    layout: Layout
    match x.layout, index.layout:
        case Replicated(), Replicated():
            layout = Replicated()
        case Sliced(d, _), Replicated() if d > 0:
            layout = x.layout
        case (Local() | Replicated(), Local() | Replicated()):
            layout = Local()
        case _:
            refuse("Permute", "33", f"found {layouts_text((x, index))}, expected whole rows in a common place")
    return TensorType(x.dtype, (index.shape[0], *x.shape[1:]), layout, x.group)
