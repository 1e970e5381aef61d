"""Rows 19 to 29 and 32: reductions, collectives, transfers and views, all of one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import FLOATS
from treadle.planner.passes.fusion.dims import ONE, Shape, parts_of, shape_text
from treadle.planner.passes.fusion.layouts import (
    FLAT,
    WORLD,
    At,
    Group,
    Layout,
    Local,
    Replicated,
    RingTile,
    Sliced,
    layout_text,
)
from treadle.planner.passes.fusion.program import Attribute, TensorType
from treadle.planner.passes.fusion.rules.operands import check_numbers, check_reduction, refuse, whole_number
from treadle.planner.passes.fusion.slice_maps import map_of


def reduction(op: str, x: TensorType, given: Mapping[str, Attribute]) -> TensorType:
    """Rows 27 to 29. A slice is reduced together with those of the other ranks. Raises TypeRefusal."""
    at, per = given["dim"], given["per"]
    if op == "Norm" and x.dtype not in FLOATS:
        refuse(op, "dtype", f"found {x.dtype}, expected one of {', '.join(FLOATS)}; write Cast")
    if op == "ReduceTensor":
        check_numbers(op, (x,))
        check_reduction(op, given["op"])
    if isinstance(x.layout, At):
        refuse(op, "27", f"found {layout_text(x.layout)}, expected Replicated, Sliced or Local")
    if per is not None:
        if per != "tensor" or at is not None:
            refuse(op, "shape", f"found per={per!r} and dim={at}, expected per='tensor' alone")
        if len(x.shape) != 1:
            refuse(op, "shape", f"found {shape_text(x.shape)}, expected one dimension that several tensors share")
        try:
            shape: Shape = (parts_of(x.shape[0]),)
        except InputError as error:
            refuse(op, "shape", str(error))
    elif at is None:
        shape = ()
    else:
        if not isinstance(at, int) or not 0 <= at < len(x.shape):
            refuse(op, "shape", f"found dim={at!r} of {shape_text(x.shape)}, expected one of its dimensions")
        shape = tuple(ONE if number == at else extent for number, extent in enumerate(x.shape))
        if isinstance(x.layout, Sliced):
            if x.layout.dim == FLAT:
                refuse(op, "28", f"found dim={at} of {layout_text(x.layout)}, expected slices along a dimension")
            return replace(x, shape=shape, layout=Replicated() if x.layout.dim == at else x.layout)
    return replace(x, shape=shape, layout=Local() if isinstance(x.layout, Local) else Replicated())


def movement(op: str, x: TensorType, given: Mapping[str, Attribute]) -> TensorType:
    """Rows 19 to 26 and 32: collectives, transfers and views. Raises TypeRefusal."""
    if "op" in given:
        check_numbers(op, (x,))
        check_reduction(op, given["op"])
    root = whole_number(op, "root", given["root"]) if "root" in given else 0
    if root < 0:
        refuse(op, "22", f"found root {root}, expected a rank of the group")
    found = layout_text(x.layout)
    layout: Layout
    match op, x.layout:
        case ("AllReduce", Local() | Replicated()) | ("AllGather", Sliced()) | ("Broadcast", At()):
            layout = Replicated()
        case ("ReduceScatter", Local()) | ("Slice", Replicated()):
            layout = _slicing(op, x.shape, given)
        case ("Reduce", Local()) | ("Load", Replicated()):
            layout = At(root)
        case "AllToAll", Local():
            if not x.shape:
                refuse(op, "32", "found a scalar, expected rows to exchange")
            layout = Local()
        case "Send", Replicated() | Sliced() | Local():
            return replace(x, group=_next_group(x.group, given["to"]))
        case _:
            row, expected = _MOVED[op]
            refuse(op, row, f"found {found}, expected {expected}")
    if op == "Broadcast" and x.layout != At(root):
        refuse(op, "23", f"found {found}, expected the root, rank {root}")
    return replace(x, layout=layout)


_MOVED = {
    "AllReduce": ("19", "Local"),
    "ReduceScatter": ("20", "Local"),
    "AllGather": ("21", "Sliced"),
    "Reduce": ("22", "Local"),
    "Broadcast": ("23", "At(root)"),
    "Slice": ("24", "Replicated"),
    "Load": ("25", "Replicated"),
    "Send": ("26", "Replicated, Sliced or Local"),
    "AllToAll": ("32", "Local"),
}
"""What a collective takes, with its row."""


def _slicing(op: str, shape: Shape, given: Mapping[str, Attribute]) -> Sliced:
    row = _MOVED[op][0]
    at, slice_map = given["dim"], map_of(given["map"])
    if not isinstance(at, int) or not FLAT <= at < len(shape) or not shape:
        refuse(op, row, f"found dim={at!r} of {shape_text(shape)}, expected one of its dimensions or FLAT")
    if isinstance(slice_map, RingTile) and at != FLAT:
        refuse(op, row, f"found a ring's tiles along dimension {at}, expected dim=FLAT")
    return Sliced(at, slice_map)


def _next_group(group: Group, to: Attribute) -> Group:
    if group.name == WORLD.name:
        refuse("Send", "26", "found a value on WORLD, expected one on a group that has a next one")
    if to != 1:
        refuse("Send", "26", f"found {to!r} groups further, expected 1")
    return replace(group, offset=group.offset + 1)
