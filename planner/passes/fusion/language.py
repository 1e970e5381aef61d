"""The language of programs, embedded in Python: `from treadle.fusion import *` (CoCoNet, section 2).

Values are built by operators and operations, and their types are inferred at once. Execute collects the program and
names its nodes after the variables of its caller. Reading a tensor that an Update has written means the new value.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, cast, get_args

from treadle.planner.documents.nearest import meant
from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import BYTES, Dtype
from treadle.planner.passes.fusion import dims as _dims
from treadle.planner.passes.fusion.dims import Dim
from treadle.planner.passes.fusion.infer import infer
from treadle.planner.passes.fusion.layouts import (
    FLAT,
    GROUP,
    WORLD,
    At,
    Block,
    Group,
    Layout,
    Local,
    Replicated,
    RingTile,
    Sliced,
    SliceMap,
)
from treadle.planner.passes.fusion.program import Attribute, Policy, Program, TensorType
from treadle.planner.passes.fusion.program_builder import build_program
from treadle.planner.passes.fusion.refusal import TypeRefusal
from treadle.planner.passes.fusion.slice_maps import map_text
from treadle.planner.passes.fusion.values import Launch, Operand, Value, current, label, make

f16, bf16, f32, f64, i32, i64 = "f16", "bf16", "f32", "f64", "i32", "i64"
bool_ = "bool"
RANK = "RANK"
"""The rank of the same number."""
BLOCK = Block()


@dataclass(frozen=True)
class GroupRank:
    """The rank that a Send goes to: `GroupRank(GROUP + 1, RANK)`."""

    group: Group
    rank: str


def dims(*names: str) -> Any:
    """One symbolic extent, or as many as there are names."""
    made = tuple(Dim((_word(name),)) for name in names)
    return made[0] if len(made) == 1 else made


def parts(extent: Dim) -> Dim:
    """How many tensors share a dimension."""
    return _dims.parts_of(extent)


def Tensor(
    name: str, dtype: str, shape: Sequence[Dim | int], layout: Layout | type[Layout], group: Group = WORLD
) -> Value:
    """A tensor of the caller. Shapes are global. Raises TypeRefusal for a layout that the shape does not have."""
    extents = tuple(_dims.dim(_extent(extent)) for extent in shape)
    placed = layout() if layout in (Replicated, Local) else layout
    if not isinstance(placed, Replicated | Local | Sliced | At):
        raise InputError(f"{name}: found layout {layout!r}, expected Replicated, Local, Sliced(dim) or At(rank)")
    if not isinstance(group, Group):
        raise InputError(f"{name}: found group {group!r}, expected WORLD or GROUP")
    if isinstance(placed, Sliced):
        infer("Slice", [TensorType(_dtype(dtype), extents, Replicated())], _slicing(placed.dim, placed.map))
    return Value("", (), {}, TensorType(_dtype(dtype), extents, placed, group), label(name))


def Scalars(names: str, dtype: str) -> Any:
    """Tensors without dimensions, available everywhere, by names with blanks between them."""
    made = tuple(Tensor(name, dtype, [], Replicated()) for name in names.split())
    return made[0] if len(made) == 1 else made


def group_size(group: Group, dtype: str = f32) -> Value:
    """How many ranks a group has, as a scalar."""
    return make("GroupSize", dtype=_dtype(dtype))


def Cast(dtype: str, x: Value, name: str | None = None) -> Value:
    """`x` in another dtype: to the nearest value, ties to even; towards zero from floats to whole numbers."""
    return make("Cast", x, dtype=_dtype(dtype), name=name)


def Dropout(x: Value, p: float, key: str, name: str | None = None) -> Value:
    """Drops elements with probability `p`, the others are scaled by 1 / (1 - p); `key` chooses the random numbers."""
    return make("Dropout", x, p=p, key=key, name=name)


def Where(condition: Value, x: Operand, y: Operand, name: str | None = None) -> Value:
    """Elements of `x` where the condition, a bool, holds, those of `y` elsewhere; of two numbers in f32."""
    return make("Where", condition, x, y, name=name)


def Update(target: Value, value: Value, name: str | None = None) -> Value:
    """Writes `value` into the storage of an input. Reading the target afterwards means this value."""
    if not isinstance(target, Value) or target.op:
        raise TypeRefusal("Update", "30", f"found the target {target!r}, expected a Tensor")
    if target.written is not None:
        raise TypeRefusal("Update", "30", f"found a second Update of {target.name}, expected one")
    value = current(value) if isinstance(value, Value) else value
    made = Value(
        "Update",
        (target, value),
        {},
        infer("Update", [target.type, value.type if isinstance(value, Value) else value], {}),
        name,
    )
    target.written = made
    return made


def _unary(op: str) -> Callable[..., Value]:
    def word(x: Value, name: str | None = None) -> Value:
        return make(op, x, name=name)

    word.__qualname__ = op
    return word


def _binary(op: str) -> Callable[..., Value]:
    def word(x: Operand, y: Operand, name: str | None = None) -> Value:
        return make(op, x, y, name=name)

    word.__qualname__ = op
    return word


Sqrt, Rsqrt, Exp, Log, Abs = map(_unary, ("Sqrt", "Rsqrt", "Exp", "Log", "Abs"))
Tanh, ReLU, GeLU, SiLU, Sigmoid = map(_unary, ("Tanh", "ReLU", "GeLU", "SiLU", "Sigmoid"))
Pow, Max, Min, Eq, Ne = map(_binary, ("Pow", "Max", "Min", "Eq", "Ne"))
Lt, Le, Gt, Ge = map(_binary, ("Lt", "Le", "Gt", "Ge"))


def MatMul(x: Value, w: Value, name: str | None = None) -> Value:
    """[.., M, K] times [K, N]."""
    return make("MatMul", x, w, name=name)


def Conv2d(x: Value, w: Value, stride: int = 1, padding: int = 0, name: str | None = None) -> Value:
    """[N, C, H, W] with [Cout, C, h, w]."""
    return make("Conv2d", x, w, stride=stride, padding=padding, name=name)


def Permute(x: Value, index: Value, name: str | None = None) -> Value:
    """The rows of `x` in the order of `index`."""
    return make("Permute", x, index, name=name)


def ReduceTensor(op: str, x: Value, dim: int | None = None, per: str | None = None, name: str | None = None) -> Value:
    """All elements to a scalar, a dimension to extent 1, or with per="tensor" each tensor of several to a scalar."""
    return make("ReduceTensor", x, op=op, dim=dim, per=per, name=name)


def Norm(x: Value, dim: int | None = None, per: str | None = None, name: str | None = None) -> Value:
    """The root of the sum of squares, over what ReduceTensor reduces."""
    return make("Norm", x, dim=dim, per=per, name=name)


def Slice(x: Value, dim: int = FLAT, map: SliceMap = BLOCK, name: str | None = None) -> Value:
    """Each rank's part of what all have; nothing moves."""
    return make("Slice", x, name=name, **_slicing(dim, map))


def Load(x: Value, root: int, name: str | None = None) -> Value:
    """What all ranks have, on rank `root` alone; nothing moves."""
    return make("Load", x, root=root, name=name)


def AllReduce(op: str, x: Value, name: str | None = None) -> Value:
    """The ranks' values combined by `op` ("+", "max", "min"), on every rank."""
    if isinstance(x, Value) and isinstance(x.type.layout, Replicated):
        warnings.warn("AllReduce of a Replicated tensor: a sum counts it once for every rank", stacklevel=2)
    return make("AllReduce", x, op=op, name=name)


def ReduceScatter(op: str, x: Value, dim: int = FLAT, map: SliceMap = BLOCK, name: str | None = None) -> Value:
    """The ranks' values combined by `op`, of which each rank has its slice."""
    return make("ReduceScatter", x, op=op, name=name, **_slicing(dim, map))


def AllGather(x: Value, name: str | None = None) -> Value:
    """The whole from its slices. That of an Update writes it back, so that the updated tensor is whole again."""
    return make("AllGather", x, name=name)


def Reduce(op: str, x: Value, root: int, name: str | None = None) -> Value:
    """The ranks' values combined by `op`, on rank `root` alone."""
    return make("Reduce", x, op=op, root=root, name=name)


def Broadcast(x: Value, root: int, name: str | None = None) -> Value:
    """What rank `root` has, on every rank."""
    return make("Broadcast", x, root=root, name=name)


def AllToAll(x: Value, name: str | None = None) -> Value:
    """Part j (of dimension 0) of rank r becomes part r of rank j."""
    return make("AllToAll", x, name=name)


def Send(x: Value, to: GroupRank, name: str | None = None) -> Value:
    """To the rank of the same number in the next group."""
    if (
        not isinstance(x, Value)
        or not isinstance(to, GroupRank)
        or to.rank != RANK
        or to.group.name != x.type.group.name
    ):
        raise TypeRefusal("Send", "26", f"found {to!r}, expected GroupRank(GROUP + 1, RANK)")
    return make("Send", x, to=to.group.offset - x.type.group.offset, name=name)


def fuse(policy: str, *members: Value | Launch) -> Launch:
    """One kernel of several operations, which take the anonymous parts of their expressions along."""
    if policy not in get_args(Policy):
        raise InputError(f"fuse: found policy {policy!r}, {meant(policy, get_args(Policy))}")
    return Launch(cast(Policy, policy), _members("fuse", members))


def overlap(*members: Value | Launch) -> Launch:
    """A chain of stages, each of which starts on what the one before has finished."""
    return Launch(None, _members("overlap", members))


def Execute(
    name: str, inputs: Sequence[Value], outputs: Sequence[Value], scope: Mapping[str, object] | None = None
) -> Program:
    """The program that computes `outputs`, writes all Updates of `inputs` and makes every other named value.

    `scope`: variables by name, the caller's unless given. Raises InputError for a value that is made of other inputs.
    """
    return build_program(name, inputs, outputs, sys._getframe(1).f_locals if scope is None else scope, RESERVED)


def _members(what: str, members: Sequence[Value | Launch]) -> tuple[Value | Launch, ...]:
    for member in members:
        if not isinstance(member, Value | Launch) or (isinstance(member, Value) and not member.op):
            raise InputError(f"{what}: found {member!r}, expected operations or kernels")
    if len(members) < (1 if what == "fuse" else 2):
        raise InputError(f"{what}: found {len(members)} members, expected more")
    return tuple(members)


def _slicing(at: int, slice_map: SliceMap) -> dict[str, Attribute]:
    if not isinstance(slice_map, Block | RingTile):
        raise InputError(f"found slice map {slice_map!r}, expected Block() or RingTile(channels, capacity)")
    return {"dim": at, "map": map_text(slice_map)}


def _dtype(name: str) -> Dtype:
    if not isinstance(name, str) or name not in BYTES:
        raise InputError(f"found dtype {name!r}, {meant(name, BYTES)}")
    return name


def _extent(extent: Dim | int) -> Dim | int:
    if isinstance(extent, Dim) or (isinstance(extent, int) and not isinstance(extent, bool) and extent > 0):
        return extent
    raise InputError(f"found extent {extent!r}, expected a dimension or a whole number above 0")


def _word(name: str) -> str:
    if label(name) in RESERVED:
        raise InputError(f"found the name {name!r}, which is a word of the language, expected another")
    return name


__all__ = [
    "FLAT",
    "GROUP",
    "RANK",
    "WORLD",
    "Abs",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "At",
    "Block",
    "Broadcast",
    "Cast",
    "Conv2d",
    "Dropout",
    "Eq",
    "Execute",
    "Exp",
    "Ge",
    "GeLU",
    "GroupRank",
    "Gt",
    "Le",
    "Load",
    "Local",
    "Log",
    "Lt",
    "MatMul",
    "Max",
    "Min",
    "Ne",
    "Norm",
    "Permute",
    "Pow",
    "ReLU",
    "Reduce",
    "ReduceScatter",
    "ReduceTensor",
    "Replicated",
    "RingTile",
    "Rsqrt",
    "Scalars",
    "Send",
    "SiLU",
    "Sigmoid",
    "Slice",
    "Sliced",
    "Sqrt",
    "Tanh",
    "Tensor",
    "Update",
    "Where",
    "bf16",
    "bool_",
    "dims",
    "f16",
    "f32",
    "f64",
    "fuse",
    "group_size",
    "i32",
    "i64",
    "inf",
    "overlap",
    "parts",
]
RESERVED = frozenset(__all__)
"""Words of the language, which no value is called."""
