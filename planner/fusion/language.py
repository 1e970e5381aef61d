"""The language of programs, embedded in Python: `from planner.fusion.language import *` (CoCoNet, section 2).

Values are built by operators and operations, and their types are inferred at once. Execute collects the program and
names its nodes after the variables of its caller. Reading a tensor that an Update has written means the new value.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Any, TypeAlias, cast, get_args

from planner.errors import InputError
from planner.fusion import dims as _dims
from planner.fusion.dims import Dim
from planner.fusion.infer import infer, layout_text, retyped
from planner.fusion.layouts import (
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
from planner.fusion.naming import canonical
from planner.fusion.operations import completed
from planner.fusion.program import (
    BYTES,
    Attribute,
    Dtype,
    Input,
    Kernel,
    Node,
    Overlap,
    Policy,
    Program,
    TensorType,
)
from planner.fusion.refusal import TypeRefusal
from planner.fusion.slice_maps import map_text

f16, bf16, f32, f64, i32, i64 = "f16", "bf16", "f32", "f64", "i32", "i64"
bool_ = "bool"
RANK = "RANK"
"""The rank of the same number."""
BLOCK = Block()
_serial = count()


def _operator(op: str) -> Callable[[Value, Operand], Value]:
    return lambda value, other: _make(op, value, other)


def _reflected(op: str) -> Callable[[Value, Operand], Value]:
    return lambda value, other: _make(op, other, value)


class Value:
    """A tensor of the program under construction; `op` is empty for an input."""

    __hash__ = object.__hash__

    def __init__(
        self,
        op: str,
        operands: Sequence[Operand],
        attributes: Mapping[str, Attribute],
        of: TensorType,
        name: str | None = None,
    ) -> None:
        self.op, self.operands, self.attributes, self.type, self.name = op, tuple(operands), attributes, of, name
        self.serial = next(_serial)
        self.written: Value | None = None

    def __repr__(self) -> str:
        return f"{self.op or 'Tensor'}({self.name or ''}: {self.type.dtype}, {layout_text(self.type.layout)})"

    def __bool__(self) -> bool:
        raise InputError("found a tensor as a condition, expected Where: programs do not branch")

    __add__, __radd__ = _operator("Add"), _reflected("Add")
    __sub__, __rsub__ = _operator("Sub"), _reflected("Sub")
    __mul__, __rmul__ = _operator("Mul"), _reflected("Mul")
    __truediv__, __rtruediv__ = _operator("Div"), _reflected("Div")
    __pow__, __rpow__ = _operator("Pow"), _reflected("Pow")
    __and__, __rand__ = _operator("And"), _reflected("And")
    __or__, __ror__ = _operator("Or"), _reflected("Or")
    __xor__, __rxor__ = _operator("Xor"), _reflected("Xor")
    __lt__ = _operator("Lt")
    __le__ = _operator("Le")
    __gt__ = _operator("Gt")
    __ge__ = _operator("Ge")

    def __neg__(self) -> Value:
        return _make("Neg", self)

    def __invert__(self) -> Value:
        return _make("Not", self)


Operand: TypeAlias = Value | int | float


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel, or with no policy an overlap, of the schedule."""

    policy: Policy | None
    members: tuple[Value | Launch, ...]


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
    return Value("", (), {}, TensorType(_dtype(dtype), extents, placed, group), _label(name))


def Scalars(names: str, dtype: str) -> Any:
    """Tensors without dimensions, available everywhere, by names with blanks between them."""
    made = tuple(Tensor(name, dtype, [], Replicated()) for name in names.split())
    return made[0] if len(made) == 1 else made


def group_size(group: Group, dtype: str = f32) -> Value:
    """How many ranks a group has, as a scalar."""
    return _make("GroupSize", dtype=_dtype(dtype))


def Cast(dtype: str, x: Value, name: str | None = None) -> Value:
    return _make("Cast", x, dtype=_dtype(dtype), name=name)


def Dropout(x: Value, p: float, key: str, name: str | None = None) -> Value:
    """Drops elements with probability `p`, the others are scaled by 1 / (1 - p); `key` chooses the random numbers."""
    return _make("Dropout", x, p=p, key=key, name=name)


def Where(condition: Value, x: Operand, y: Operand, name: str | None = None) -> Value:
    return _make("Where", condition, x, y, name=name)


def Update(target: Value, value: Value, name: str | None = None) -> Value:
    """Writes `value` into the storage of an input. Reading the target afterwards means this value."""
    if not isinstance(target, Value) or target.op:
        raise TypeRefusal("Update", "30", f"found the target {target!r}, expected a Tensor")
    if target.written is not None:
        raise TypeRefusal("Update", "30", f"found a second Update of {target.name}, expected one")
    value = _current(value) if isinstance(value, Value) else value
    made = Value("Update", (target, value), {}, infer("Update", [target.type, _type(value)], {}), _named(name))
    target.written = made
    return made


def _unary(op: str) -> Callable[..., Value]:
    def make(x: Value, name: str | None = None) -> Value:
        return _make(op, x, name=name)

    make.__name__ = op
    return make


def _binary(op: str) -> Callable[..., Value]:
    def make(x: Operand, y: Operand, name: str | None = None) -> Value:
        return _make(op, x, y, name=name)

    make.__name__ = op
    return make


Sqrt, Rsqrt, Exp, Log, Abs = map(_unary, ("Sqrt", "Rsqrt", "Exp", "Log", "Abs"))
Tanh, ReLU, GeLU, SiLU, Sigmoid = map(_unary, ("Tanh", "ReLU", "GeLU", "SiLU", "Sigmoid"))
Pow, Max, Min, Eq, Ne = map(_binary, ("Pow", "Max", "Min", "Eq", "Ne"))
Lt, Le, Gt, Ge = map(_binary, ("Lt", "Le", "Gt", "Ge"))


def MatMul(x: Value, w: Value, name: str | None = None) -> Value:
    """[.., M, K] times [K, N]."""
    return _make("MatMul", x, w, name=name)


def Conv2d(x: Value, w: Value, stride: int = 1, padding: int = 0, name: str | None = None) -> Value:
    """[N, C, H, W] with [Cout, C, h, w]."""
    return _make("Conv2d", x, w, stride=stride, padding=padding, name=name)


def Permute(x: Value, index: Value, name: str | None = None) -> Value:
    """The rows of `x` in the order of `index`."""
    return _make("Permute", x, index, name=name)


def ReduceTensor(op: str, x: Value, dim: int | None = None, per: str | None = None, name: str | None = None) -> Value:
    """All elements to a scalar, a dimension to extent 1, or with per="tensor" each tensor of several to a scalar."""
    return _make("ReduceTensor", x, op=op, dim=dim, per=per, name=name)


def Norm(x: Value, dim: int | None = None, per: str | None = None, name: str | None = None) -> Value:
    """The root of the sum of squares, over what ReduceTensor reduces."""
    return _make("Norm", x, dim=dim, per=per, name=name)


def Slice(x: Value, dim: int = FLAT, map: SliceMap = BLOCK, name: str | None = None) -> Value:
    """Each rank's part of what all have; nothing moves."""
    return _make("Slice", x, name=name, **_slicing(dim, map))


def Load(x: Value, root: int, name: str | None = None) -> Value:
    return _make("Load", x, root=root, name=name)


def AllReduce(op: str, x: Value, name: str | None = None) -> Value:
    if isinstance(x, Value) and isinstance(x.type.layout, Replicated):
        warnings.warn("AllReduce of a Replicated tensor: a sum counts it once for every rank", stacklevel=2)
    return _make("AllReduce", x, op=op, name=name)


def ReduceScatter(op: str, x: Value, dim: int = FLAT, map: SliceMap = BLOCK, name: str | None = None) -> Value:
    return _make("ReduceScatter", x, op=op, name=name, **_slicing(dim, map))


def AllGather(x: Value, name: str | None = None) -> Value:
    """The whole from its slices. That of an Update writes it back, so that the updated tensor is whole again."""
    return _make("AllGather", x, name=name)


def Reduce(op: str, x: Value, root: int, name: str | None = None) -> Value:
    return _make("Reduce", x, op=op, root=root, name=name)


def Broadcast(x: Value, root: int, name: str | None = None) -> Value:
    return _make("Broadcast", x, root=root, name=name)


def AllToAll(x: Value, name: str | None = None) -> Value:
    """Part j (of dimension 0) of rank r becomes part r of rank j."""
    return _make("AllToAll", x, name=name)


def Send(x: Value, to: GroupRank, name: str | None = None) -> Value:
    """To the rank of the same number in the next group."""
    if (
        not isinstance(x, Value)
        or not isinstance(to, GroupRank)
        or to.rank != RANK
        or to.group.name != x.type.group.name
    ):
        raise TypeRefusal("Send", "26", f"found {to!r}, expected GroupRank(GROUP + 1, RANK)")
    return _make("Send", x, to=to.group.offset - x.type.group.offset, name=name)


def fuse(policy: str, *members: Value | Launch) -> Launch:
    """One kernel of several operations, which take the anonymous parts of their expressions along."""
    if policy not in get_args(Policy):
        raise InputError(f"fuse: found policy {policy!r}, expected one of {', '.join(get_args(Policy))}")
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
    scope = sys._getframe(1).f_locals if scope is None else scope
    for value in (*inputs, *outputs):
        if not isinstance(value, Value):
            raise InputError(f"{name}: found {value!r}, expected tensors")
    given = {value.serial for value in inputs}
    variables = {variable: value for variable, value in scope.items() if not variable.startswith("_")}
    wanted = [_current(value) for value in outputs]
    written = [value.written for value in inputs if value.written is not None]
    others = [value for value in variables.values() if isinstance(value, Value) and not _foreign(value, given)]
    nodes = _made_for([*wanted, *written, *others], name, given)
    names = _names(name, inputs, nodes, variables)
    launches = [(of, key) for key, of in variables.items() if isinstance(of, Launch) and _launched(of) <= set(names)]

    def called(member: Value | Launch) -> str:
        if isinstance(member, Value):
            return names[member.serial]
        found = [key for of, key in launches if of is member]
        if not found:
            raise InputError(f"{name}: found a kernel without a name, expected it assigned to a variable")
        return found[0]

    program = Program(
        name=_label(name),
        inputs=tuple(Input(names[value.serial], value.type) for value in inputs),
        nodes=tuple(
            Node(
                names[value.serial],
                value.op,
                tuple(names[of.serial] if isinstance(of, Value) else of for of in value.operands),
                value.type,
                completed(value.op, value.attributes),
            )
            for value in nodes
        ),
        outputs=tuple(names[value.serial] for value in wanted),
        kernels=tuple(Kernel(key, of.policy, tuple(map(called, of.members))) for of, key in launches if of.policy),
        overlaps=tuple(Overlap(key, tuple(map(called, of.members))) for of, key in launches if not of.policy),
    )
    return canonical(retyped(program))


def _make(kind: str, /, *operands: Operand, name: str | None = None, **attributes: Attribute) -> Value:
    for operand in operands:
        if not isinstance(operand, Value | int | float) or isinstance(operand, bool) or operand != operand:
            raise InputError(f"{kind}: found {operand!r}, expected a tensor or a number")
    read = [_current(operand) if isinstance(operand, Value) else operand for operand in operands]
    return Value(kind, read, attributes, infer(kind, [_type(operand) for operand in read], attributes), _named(name))


def _current(value: Value) -> Value:
    return value if value.written is None else value.written


def _type(operand: Operand) -> TensorType | int | float:
    return operand.type if isinstance(operand, Value) else operand


def _made_for(values: Sequence[Value], program: str, given: set[int]) -> list[Value]:
    """All that these are made of, without the inputs, in the order in which it was written."""
    found: dict[int, Value] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if not value.op and value.serial not in given:
            raise InputError(f"{program}: found the tensor {value.name!r} used, expected it among the inputs")
        if value.op and value.serial not in found:
            found[value.serial] = value
            waiting += [of for of in value.operands if isinstance(of, Value)]
    return [found[serial] for serial in sorted(found)]


def _foreign(value: Value, given: set[int]) -> bool:
    """Whether it needs a tensor that is no input."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        of = waiting.pop()
        if of.serial in seen:
            continue
        seen.add(of.serial)
        if not of.op and of.serial not in given:
            return True
        waiting += [operand for operand in of.operands if isinstance(operand, Value)]
    return False


def _launched(launch: Launch) -> set[int]:
    """The values that a kernel or overlap runs."""
    return {
        serial
        for member in launch.members
        for serial in ({member.serial} if isinstance(member, Value) else _launched(member))
    }


def _names(
    program: str, inputs: Sequence[Value], nodes: Sequence[Value], variables: Mapping[str, object]
) -> dict[int, str]:
    """Names by serial number: those of inputs, explicit ones, variables; the rest begin with an underscore."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    for value in [*inputs, *(node for node in nodes if node.name)]:
        if value.name in taken:
            raise InputError(f"{program}: found two values called {value.name!r}, expected names that differ")
        names[value.serial] = value.name or ""
        taken.add(names[value.serial])
    made = {node.serial for node in nodes}
    for variable, of in variables.items():
        if isinstance(of, Value) and of.serial in made and of.serial not in names:
            name = variable
            while name in taken:
                name += "_"
            names[of.serial] = _word(name)
            taken.add(name)
    return {**{node.serial: f"_{number}" for number, node in enumerate(nodes)}, **names}


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
    if name not in BYTES:
        raise InputError(f"found dtype {name!r}, expected one of {', '.join(BYTES)}")
    return name


def _extent(extent: Dim | int) -> Dim | int:
    if isinstance(extent, Dim) or (isinstance(extent, int) and not isinstance(extent, bool) and extent > 0):
        return extent
    raise InputError(f"found extent {extent!r}, expected a dimension or a whole number above 0")


def _label(name: str) -> str:
    """What inputs and programs may be called: a word, even one that Python keeps for itself."""
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or name.startswith("_"):
        raise InputError(f"found the name {name!r}, expected letters, digits and underscores, and a letter first")
    return name


def _word(name: str) -> str:
    if _label(name) in RESERVED:
        raise InputError(f"found the name {name!r}, which is a word of the language, expected another")
    return name


def _named(name: str | None) -> str | None:
    return None if name is None else _word(name)


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
