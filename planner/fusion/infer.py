"""Types of nodes from the types of their operands; rows are those of the table in docs/fusion.md.

What no row allows is refused: layouts change only where a program says so (CoCoNet, sections 2.1 and 2.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, TypeAlias, cast

from planner.errors import InputError
from planner.fusion.dims import ONE, PARTS, Dim, Shape, dim, parts_of
from planner.fusion.layouts import FLAT, WORLD, At, Group, Layout, Local, Replicated, RingTile, Sliced
from planner.fusion.operations import COMPARISONS, FLOAT_UNARY, LOGIC, REDUCTIONS, completed, operation
from planner.fusion.program import BYTES, Attribute, Dtype, Node, Operand, Program, TensorType
from planner.fusion.refusal import TypeRefusal
from planner.fusion.slice_maps import map_of

FLOATS = ("f16", "bf16", "f32", "f64")
Argument: TypeAlias = TensorType | int | float


def infer(op: str, operands: Sequence[Argument], attributes: Mapping[str, Attribute]) -> TensorType:
    """The type of `op` on these operands; numbers take the type of the others.

    Raises TypeRefusal with the row that is violated, InputError for an unknown operation or attribute.
    """
    known, given = operation(op), dict(completed(op, attributes))
    if len(operands) != known.arity:
        raise InputError(f"{op}: found {len(operands)} operands, expected {known.arity}")
    if known.kind == "pointwise":
        return _pointwise(op, operands, given)
    types = []
    for operand in operands:
        if not isinstance(operand, TensorType):
            _refuse(op, "dtype", f"found the number {operand}, expected a tensor")
        types.append(operand)
    if op in ("MatMul", "Conv2d", "Permute"):
        _group(op, types, "group")
        return {"MatMul": _matmul, "Conv2d": _conv2d, "Permute": _permute}[op](types[0], types[1], given)
    if known.kind == "reduction":
        return _reduction(op, types[0], given)
    return _movement(op, types[0], given)


def typed(
    name: str,
    op: str,
    inputs: Sequence[Operand],
    attributes: Mapping[str, Attribute],
    types: Mapping[str, TensorType],
) -> Node:
    """A node with its attributes completed and its type inferred. Raises TypeRefusal."""
    operands = [types[value] if isinstance(value, str) else value for value in inputs]
    return Node(name, op, tuple(inputs), infer(op, operands, attributes), completed(op, attributes))


def retyped(program: Program) -> Program:
    """The program with the types of all nodes inferred again from those of its inputs.

    Raises TypeRefusal, with row 31 for an input that an Update leaves stale, and InputError for a value that is read
    before it is made, or as it was before an Update that has run.
    """
    types = {value.name: value.type for value in program.inputs}
    nodes, written = [], dict[str, str]()
    for node in program.nodes:
        for read in node.inputs:
            if isinstance(read, str) and read not in types:
                raise InputError(f"{node.name}: found {read!r} read before it is made, expected nodes in running order")
        for read in node.reads:
            if read in written:
                raise InputError(
                    f"{node.name}: found the old value of {read!r} read after {written[read]} has written it"
                )
        if node.op == "Update":
            written[str(node.inputs[0])] = node.name
        made = typed(node.name, node.op, node.inputs, dict(node.attributes), types)
        types[node.name] = made.type
        nodes.append(made)
    whole = replace(program, nodes=tuple(nodes))
    for target in stale(whole):
        message = f"{target} is Replicated and its Update sliced; expected an AllGather of the Update, or asSlice"
        raise TypeRefusal("Update", "31", message)
    return whole


def stale(program: Program) -> tuple[str, ...]:
    """Replicated inputs of which an Update leaves each rank only a slice that no AllGather completes (row 31)."""
    return tuple(
        target
        for target, node in program.updates.items()
        if isinstance(program.by_name[target].type.layout, Replicated)
        and isinstance(node.type.layout, Sliced)
        and not any(reader.op == "AllGather" for reader in program.readers[node.name])
    )


def _pointwise(op: str, operands: Sequence[Argument], given: Mapping[str, Attribute]) -> TensorType:
    if op == "GroupSize":
        return TensorType(_dtype_named(op, given["dtype"]), (), Replicated())
    types = [operand for operand in operands if isinstance(operand, TensorType)]
    if not types:
        _refuse(op, "dtype", "found numbers only, expected a tensor")
    dtype = _element(op, operands, given)
    group = _group(op, types, "9")
    if op == "Update":
        return _update(operands, dtype, group)
    shape = broadcast(op, [of.shape for of in types])
    return TensorType(dtype, shape, _joined(op, types, shape), group)


def _element(op: str, operands: Sequence[Argument], given: Mapping[str, Attribute]) -> Dtype:
    """The dtype of a pointwise result. Operands must agree, casts are written out."""
    values = list(operands[1:]) if op == "Where" else list(operands)
    dtypes = sorted({of.dtype for of in values if isinstance(of, TensorType)})
    if op == "Where" and (not isinstance(operands[0], TensorType) or operands[0].dtype != "bool"):
        _refuse(op, "dtype", "found a condition that is not bool, expected a comparison")
    if len(dtypes) != 1:
        _refuse(op, "dtype", f"found {' and '.join(dtypes) or 'numbers only'}, expected one dtype; write Cast")
    dtype = dtypes[0]
    if dtype not in FLOATS and any(isinstance(of, float) for of in values):
        _refuse(op, "dtype", f"found a fraction with {dtype}, expected whole numbers; write Cast")
    if op == "Cast":
        return _dtype_named(op, given["dtype"])
    if op == "Dropout":
        p = given["p"]
        if not isinstance(p, int | float) or not 0 <= p < 1:
            _refuse(op, "18", f"found p = {p!r}, expected the probability to drop, 0 <= p < 1")
    if op in (*FLOAT_UNARY, "Div", "Dropout") and dtype not in FLOATS:
        _refuse(op, "dtype", f"found {dtype}, expected one of {', '.join(FLOATS)}; write Cast")
    if op in (*LOGIC, "Not"):
        if dtype in FLOATS:
            _refuse(op, "dtype", f"found {dtype}, expected bool or whole numbers")
    elif dtype == "bool" and op not in ("Where", "Update", "Eq", "Ne"):
        _refuse(op, "dtype", "found bool, expected numbers; write Cast")
    return "bool" if op in COMPARISONS else dtype


def broadcast(op: str, shapes: Sequence[Shape]) -> Shape:
    """The common shape, aligned at the last dimension; one scalar per tensor goes with the elements of the tensors."""
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
            _refuse(op, "shape", f"found shapes {shown}, expected extents that are equal or 1")
        extents.append(whole[0] if whole else ONE)
    return tuple(extents)


def _padded(shape: Shape, length: int) -> Shape:
    return (ONE,) * (length - len(shape)) + shape


def _is_parts(extent: Dim, of: Dim) -> bool:
    return len(of.names) == 1 and of.factor == 1 and not of.names[0].endswith(PARTS) and extent == parts_of(of)


def scalar(of: TensorType) -> bool:
    """Without dimensions and available everywhere."""
    return not of.shape and isinstance(of.layout, Replicated)


def full_along(of: Shape, shape: Shape, layout: Sliced) -> bool:
    """Whether an operand of shape `of` has the whole extent that `layout` divides in `shape` (row 8), not 1 (row 7)."""
    mine = _padded(of, len(shape))
    return mine == shape if layout.dim == FLAT else mine[layout.dim] == shape[layout.dim] and not mine[layout.dim].one


def _joined(op: str, types: Sequence[TensorType], shape: Shape) -> Layout:
    """Rows 1 to 9: the layout of a pointwise result."""
    placed = [of for of in types if not scalar(of)]
    kinds = {type(of.layout) for of in placed}
    if At in kinds:
        if len({of.layout for of in placed}) > 1:
            _refuse(op, "9", f"found {_layouts(placed)}, expected operands on one rank; write Load(x, r)")
        return placed[0].layout
    if Sliced not in kinds:
        return Local() if Local in kinds else Replicated()
    if Local in kinds:
        _refuse(op, "9", f"found {_layouts(placed)}, expected no Local operand beside a sliced one")
    sliced = [(of, _aligned(op, of, shape)) for of in placed if isinstance(of.layout, Sliced)]
    layout = sliced[0][1]
    for of, other in sliced:
        if other != layout:
            row = "9" if other.dim != layout.dim else "4"
            _refuse(
                op, row, f"found {layout_text(sliced[0][0].layout)} and {layout_text(of.layout)}, expected one slicing"
            )
    for of in placed:
        if isinstance(of.layout, Replicated) and full_along(of.shape, shape, layout):
            along = "in full" if layout.dim == FLAT else f"in full along dimension {layout.dim}"
            text = layout_text(layout)
            _refuse(op, "8", f"found a Replicated operand {shape_text(of.shape)} {along} beside {text}; write Slice(x)")
    return layout


def _aligned(op: str, of: TensorType, shape: Shape) -> Sliced:
    """The slicing of an operand in terms of the dimensions of the result."""
    layout = cast(Sliced, of.layout)
    if layout.dim == FLAT:
        if _padded(of.shape, len(shape)) != shape:
            shown = f"{shape_text(of.shape)} sliced flat, broadcast to {shape_text(shape)}"
            _refuse(op, "4", f"found {shown}, expected the shape of the result")
        return layout
    at = len(shape) - len(of.shape) + layout.dim
    if shape[at] != of.shape[layout.dim]:
        _refuse(
            op, "4", f"found extent {of.shape[layout.dim]} sliced, broadcast to {shape[at]}, expected equal extents"
        )
    return replace(layout, dim=at)


def _update(operands: Sequence[Argument], dtype: Dtype, group: Group) -> TensorType:
    target, value = operands
    if not isinstance(target, TensorType) or not isinstance(value, TensorType):
        _refuse("Update", "30", "found a number, expected a tensor of the target's shape")
    if target.shape != value.shape:
        shown = f"{shape_text(value.shape)} for a target of {shape_text(target.shape)}"
        _refuse("Update", "shape", f"found a value of {shown}, expected equal shapes")
    transient = isinstance(target.layout, Replicated) and isinstance(value.layout, Sliced)
    if target.layout != value.layout and not transient:
        shown = f"{layout_text(value.layout)} for a target that is {layout_text(target.layout)}"
        _refuse("Update", "30", f"found a value that is {shown}, expected the same layout")
    return TensorType(dtype, target.shape, value.layout, group)


def _matmul(x: TensorType, w: TensorType, given: Mapping[str, Attribute]) -> TensorType:
    _numbers("MatMul", (x, w))
    if len(x.shape) < 2 or len(w.shape) != 2 or x.shape[-1] != w.shape[0]:
        shown = f"{shape_text(x.shape)} and {shape_text(w.shape)}"
        _refuse("MatMul", "shape", f"found shapes {shown}, expected [.., M, K] and [K, N]")
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
            _refuse(
                "MatMul",
                "15",
                f"found {_layouts((x, w))}, expected the contracted dimension of both sliced, or one whole",
            )
    return TensorType(x.dtype, (*x.shape[:-1], w.shape[1]), layout, x.group)


def _conv2d(x: TensorType, w: TensorType, given: Mapping[str, Attribute]) -> TensorType:
    _numbers("Conv2d", (x, w))
    if len(x.shape) != 4 or len(w.shape) != 4 or x.shape[1] != w.shape[1]:
        shown = f"{shape_text(x.shape)} and {shape_text(w.shape)}"
        _refuse("Conv2d", "shape", f"found shapes {shown}, expected [N, C, H, W] and [Cout, C, h, w]")
    padding, stride = (_whole("Conv2d", name, given[name]) for name in ("padding", "stride"))
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
            _refuse(
                "Conv2d", "17b", "found an image sliced in space, which needs its neighbours' rows; expected it whole"
            )
        case _:
            _refuse("Conv2d", "16", f"found {_layouts((x, w))}, expected both sliced along C, or one of them whole")
    return TensorType(x.dtype, (x.shape[0], w.shape[0], *spatial), layout, x.group)


def _convolved(image: Dim, kernel: Dim, padding: int, stride: int) -> Dim:
    if stride < 1 or padding < 0:
        _refuse("Conv2d", "shape", f"found stride {stride} and padding {padding}, expected at least 1 and 0")
    if kernel.names:
        _refuse("Conv2d", "shape", f"found a kernel of extent {kernel}, expected a number")
    if not image.names:
        extent = (image.factor + 2 * padding - kernel.factor) // stride + 1
        if extent < 1:
            _refuse("Conv2d", "shape", f"found a kernel of {kernel} for an image of {image}, expected a smaller one")
        return dim(extent)
    if stride != 1 or 2 * padding != kernel.factor - 1:
        _refuse(
            "Conv2d", "shape", f"found extent {image}, expected a number, or stride 1 and padding {kernel.factor // 2}"
        )
    return image


def _permute(x: TensorType, index: TensorType, given: Mapping[str, Attribute]) -> TensorType:
    if index.dtype not in ("i32", "i64") or len(index.shape) != 1 or not x.shape:
        shown = f"{index.dtype} {shape_text(index.shape)}"
        _refuse("Permute", "shape", f"found an index that is {shown}, expected whole numbers for the rows of a tensor")
    layout: Layout
    match x.layout, index.layout:
        case Replicated(), Replicated():
            layout = Replicated()
        case Sliced(d, _), Replicated() if d > 0:
            layout = x.layout
        case (Local() | Replicated(), Local() | Replicated()):
            layout = Local()
        case _:
            _refuse("Permute", "33", f"found {_layouts((x, index))}, expected whole rows in a common place")
    return TensorType(x.dtype, (index.shape[0], *x.shape[1:]), layout, x.group)


def _reduction(op: str, x: TensorType, given: Mapping[str, Attribute]) -> TensorType:
    """Rows 27 to 29. A slice is reduced together with those of the other ranks."""
    at, per = given["dim"], given["per"]
    if op == "Norm" and x.dtype not in FLOATS:
        _refuse(op, "dtype", f"found {x.dtype}, expected one of {', '.join(FLOATS)}; write Cast")
    if op == "ReduceTensor":
        _numbers(op, (x,))
        _reduced_by(op, given["op"])
    if isinstance(x.layout, At):
        _refuse(op, "27", f"found {layout_text(x.layout)}, expected Replicated, Sliced or Local")
    if per is not None:
        if per != "tensor" or at is not None:
            _refuse(op, "shape", f"found per={per!r} and dim={at}, expected per='tensor' alone")
        if len(x.shape) != 1:
            _refuse(op, "shape", f"found {shape_text(x.shape)}, expected one dimension that several tensors share")
        try:
            shape: Shape = (parts_of(x.shape[0]),)
        except InputError as error:
            _refuse(op, "shape", str(error))
    elif at is None:
        shape = ()
    else:
        if not isinstance(at, int) or not 0 <= at < len(x.shape):
            _refuse(op, "shape", f"found dim={at!r} of {shape_text(x.shape)}, expected one of its dimensions")
        shape = tuple(ONE if number == at else extent for number, extent in enumerate(x.shape))
        if isinstance(x.layout, Sliced):
            if x.layout.dim == FLAT:
                _refuse(op, "28", f"found dim={at} of {layout_text(x.layout)}, expected slices along a dimension")
            return replace(x, shape=shape, layout=Replicated() if x.layout.dim == at else x.layout)
    return replace(x, shape=shape, layout=Local() if isinstance(x.layout, Local) else Replicated())


def _movement(op: str, x: TensorType, given: Mapping[str, Attribute]) -> TensorType:
    """Rows 19 to 26 and 32: collectives, transfers and views."""
    if "op" in given:
        _numbers(op, (x,))
        _reduced_by(op, given["op"])
    root = _whole(op, "root", given["root"]) if "root" in given else 0
    if root < 0:
        _refuse(op, "22", f"found root {root}, expected a rank of the group")
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
                _refuse(op, "32", "found a scalar, expected rows to exchange")
            layout = Local()
        case "Send", Replicated() | Sliced() | Local():
            return replace(x, group=_next_group(x.group, given["to"]))
        case _:
            row, expected = _MOVED[op]
            _refuse(op, row, f"found {found}, expected {expected}")
    if op == "Broadcast" and x.layout != At(root):
        _refuse(op, "23", f"found {found}, expected the root, rank {root}")
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
        _refuse(op, row, f"found dim={at!r} of {shape_text(shape)}, expected one of its dimensions or FLAT")
    if isinstance(slice_map, RingTile) and at != FLAT:
        _refuse(op, row, f"found a ring's tiles along dimension {at}, expected dim=FLAT")
    return Sliced(at, slice_map)


def _next_group(group: Group, to: Attribute) -> Group:
    if group.name == WORLD.name:
        _refuse("Send", "26", "found a value on WORLD, expected one on a group that has a next one")
    if to != 1:
        _refuse("Send", "26", f"found {to!r} groups further, expected 1")
    return replace(group, offset=group.offset + 1)


def _group(op: str, types: Sequence[TensorType], row: str) -> Group:
    """The group of all operands; scalars of WORLD are available everywhere."""
    groups = list(dict.fromkeys(of.group for of in types if not (scalar(of) and of.group == WORLD)))
    if len(groups) > 1:
        _refuse(op, row, f"found operands on {' and '.join(map(str, groups))}, expected one group; write Send")
    return groups[0] if groups else WORLD


def _numbers(op: str, types: Sequence[TensorType]) -> None:
    dtypes = sorted({of.dtype for of in types})
    if len(dtypes) > 1 or dtypes == ["bool"]:
        _refuse(op, "dtype", f"found {' and '.join(dtypes)}, expected numbers of one dtype; write Cast")


def _reduced_by(op: str, by: Attribute) -> None:
    if by not in REDUCTIONS:
        _refuse(op, "19", f"found op {by!r}, expected one of {', '.join(REDUCTIONS)}")


def _whole(op: str, name: str, value: Attribute) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(op, "shape", f"found {name}={value!r}, expected a whole number")
    return value


def _dtype_named(op: str, name: Attribute) -> Dtype:
    if name not in BYTES:
        _refuse(op, "dtype", f"found dtype {name!r}, expected one of {', '.join(BYTES)}")
    return name


def layout_text(layout: Layout) -> str:
    """As programs write it."""
    match layout:
        case Sliced(at, slice_map):
            where = "FLAT" if at == FLAT else str(at)
        case At(rank):
            return f"At({rank})"
        case _:
            return type(layout).__name__
    if not isinstance(slice_map, RingTile):
        return f"Sliced({where})"
    order = ", rank_major=True" if slice_map.rank_major else ""
    return f"Sliced({where}, RingTile({slice_map.channels}, {slice_map.capacity}, {slice_map.align}{order}))"


def shape_text(shape: Shape) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _layouts(types: Sequence[TensorType]) -> str:
    return " and ".join(layout_text(of.layout) for of in types)


def _refuse(op: str, row: str, message: str) -> NoReturn:
    raise TypeRefusal(op, row, message)
