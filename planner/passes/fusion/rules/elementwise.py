"""Rows 1 to 9, 18, 30, 31 and 34: operations that run element by element, and what they are broadcast to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from treadle.planner.machine.dtypes import FLOATS, Dtype
from treadle.planner.passes.fusion.dims import ONE, PARTS, Dim, Shape, parts_of, shape_text
from treadle.planner.passes.fusion.layouts import FLAT, At, Group, Layout, Local, Replicated, Sliced, layout_text
from treadle.planner.passes.fusion.operations import COMPARISONS, FLOAT_UNARY, LOGIC
from treadle.planner.passes.fusion.program import Attribute, TensorType
from treadle.planner.passes.fusion.rules.operands import (
    Argument,
    common_group,
    dtype_named,
    layouts_text,
    refuse,
    scalar,
)


def elementwise(op: str, operands: Sequence[Argument], given: Mapping[str, Attribute]) -> TensorType:
    """The type of a pointwise operation with these attributes. Raises TypeRefusal."""
    if op == "GroupSize":
        return TensorType(dtype_named(op, given["dtype"]), (), Replicated())
    types = [operand for operand in operands if isinstance(operand, TensorType)]
    if not types:
        refuse(op, "dtype", "found numbers only, expected a tensor")
    dtype = _element(op, operands, given)
    group = common_group(op, types, "9")
    if op == "Update":
        return _update(operands, dtype, group)
    shape = broadcast(op, [of.shape for of in types])
    return TensorType(dtype, shape, _joined(op, types, shape), group)


def _element(op: str, operands: Sequence[Argument], given: Mapping[str, Attribute]) -> Dtype:
    """The dtype of a pointwise result. Operands must agree, casts are written out; numbers alone are f32."""
    values = list(operands[1:]) if op == "Where" else list(operands)
    dtypes = sorted({of.dtype for of in values if isinstance(of, TensorType)})
    if op == "Where" and (not isinstance(operands[0], TensorType) or operands[0].dtype != "bool"):
        refuse(op, "dtype", "found a condition that is not bool, expected a comparison, such as x > 0")
    if op == "Where" and not dtypes:
        return "f32"
    if len(dtypes) != 1:
        refuse(op, "dtype", f"found {' and '.join(dtypes) or 'numbers only'}, expected one dtype; write Cast")
    dtype = dtypes[0]
    if dtype not in FLOATS and any(isinstance(of, float) for of in values):
        refuse(op, "dtype", f"found a fraction with {dtype}, expected whole numbers; write Cast")
    if op == "Cast":
        return dtype_named(op, given["dtype"])
    if op == "Dropout":
        p = given["p"]
        if not isinstance(p, int | float) or not 0 <= p < 1:
            refuse(op, "18", f"found p = {p!r}, expected the probability to drop, 0 <= p < 1")
    if op in (*FLOAT_UNARY, "Div", "Dropout") and dtype not in FLOATS:
        refuse(op, "dtype", f"found {dtype}, expected one of {', '.join(FLOATS)}; write Cast")
    if op in (*LOGIC, "Not"):
        if dtype in FLOATS:
            refuse(op, "dtype", f"found {dtype}, expected bool or whole numbers")
    elif dtype == "bool" and op not in ("Where", "Update", "Eq", "Ne"):
        refuse(op, "dtype", "found bool, expected numbers; write Cast")
    return "bool" if op in COMPARISONS else dtype


def broadcast(op: str, shapes: Sequence[Shape]) -> Shape:
    """The common shape, aligned at the last dimension; one scalar per tensor goes with the elements of the tensors.

    Raises TypeRefusal (shape).
    """
    length = max(len(shape) for shape in shapes)
    if len(distinct := {shape for shape in shapes if shape}) <= 1:
        return distinct.pop() if distinct else ()
    padded = [_padded(shape, length) for shape in shapes]
    extents = []
    for at in range(length):
        found = sorted({shape[at] for shape in padded if shape[at] != ONE})
        whole = [extent for extent in found if not any(_is_parts(extent, other) for other in found)]
        if len(whole) > 1:
            shown = " and ".join(shape_text(shape) for shape in shapes)
            refuse(op, "shape", f"found shapes {shown}, expected extents that are equal or 1")
        extents.append(whole[0] if whole else ONE)
    return tuple(extents)


def _padded(shape: Shape, length: int) -> Shape:
    return (ONE,) * (length - len(shape)) + shape


def _is_parts(extent: Dim, of: Dim) -> bool:
    return len(of.names) == 1 and of.factor == 1 and not of.names[0].endswith(PARTS) and extent == parts_of(of)


def full_along(of: Shape, shape: Shape, layout: Sliced) -> bool:
    """Whether an operand of shape `of` has the whole extent that `layout` divides in `shape` (row 8), not 1 (row 7)."""
    mine = _padded(of, len(shape))
    return mine == shape if layout.dim == FLAT else mine[layout.dim] == shape[layout.dim] and not mine[layout.dim].one


def aligned(of: TensorType, shape: Shape) -> Layout:
    """The layout of an operand in terms of the dimensions of `shape`, which it is broadcast to."""
    layout = of.layout
    if isinstance(layout, Sliced) and layout.dim != FLAT:
        return replace(layout, dim=layout.dim + len(shape) - len(of.shape))
    return layout


def _joined(op: str, types: Sequence[TensorType], shape: Shape) -> Layout:
    """Rows 1 to 9: the layout of a pointwise result."""
    placed = [of for of in types if not scalar(of)]
    kinds = {type(of.layout) for of in placed}
    if At in kinds:
        if len({of.layout for of in placed}) > 1:
            refuse(op, "9", f"found {layouts_text(placed)}, expected operands on one rank; write Load(x, r)")
        return placed[0].layout
    if Sliced not in kinds:
        return Local() if Local in kinds else Replicated()
    if Local in kinds:
        refuse(op, "9", f"found {layouts_text(placed)}, expected no Local operand next to a sliced one")
    sliced = [(of, _slicing(op, of, shape)) for of in placed if isinstance(of.layout, Sliced)]
    layout = sliced[0][1]
    for of, other in sliced:
        if other != layout:
            row = "9" if other.dim != layout.dim else "4"
            refuse(
                op, row, f"found {layout_text(sliced[0][0].layout)} and {layout_text(of.layout)}, expected one slicing"
            )
    for of in placed:
        if isinstance(of.layout, Replicated) and full_along(of.shape, shape, layout):
            along = "in full" if layout.dim == FLAT else f"in full along dimension {layout.dim}"
            text = layout_text(layout)
            refuse(op, "8", f"found a Replicated operand {shape_text(of.shape)} {along} next to {text}; write Slice(x)")
    return layout


def _slicing(op: str, of: TensorType, shape: Shape) -> Sliced:
    """The slicing of an operand in terms of the dimensions of the result, which has all that it divides."""
    layout = cast(Sliced, of.layout)
    if layout.dim == FLAT:
        if _padded(of.shape, len(shape)) != shape:
            shown = f"{shape_text(of.shape)} sliced flat, broadcast to {shape_text(shape)}"
            refuse(op, "4", f"found {shown}, expected the shape of the result")
        return layout
    placed = cast(Sliced, aligned(of, shape))
    if shape[placed.dim] != of.shape[layout.dim]:
        shown = f"extent {of.shape[layout.dim]} sliced, broadcast to {shape[placed.dim]}"
        refuse(op, "4", f"found {shown}, expected equal extents")
    return placed


def _update(operands: Sequence[Argument], dtype: Dtype, group: Group) -> TensorType:
    target, value = operands
    if not isinstance(target, TensorType) or not isinstance(value, TensorType):
        refuse("Update", "30", "found a number, expected a tensor of the target's shape")
    if target.shape != value.shape:
        shown = f"{shape_text(value.shape)} for a target of {shape_text(target.shape)}"
        refuse("Update", "shape", f"found a value of {shown}, expected equal shapes")
    transient = isinstance(target.layout, Replicated) and isinstance(value.layout, Sliced)
    if target.layout != value.layout and not transient:
        shown = f"{layout_text(value.layout)} for a target that is {layout_text(target.layout)}"
        refuse("Update", "30", f"found a value that is {shown}, expected the same layout")
    return TensorType(dtype, target.shape, value.layout, group)
