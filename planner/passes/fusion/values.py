"""Values of the language: tensors under construction, with Python's operators and their types inferred at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.infer import infer
from treadle.planner.passes.fusion.layouts import layout_text
from treadle.planner.passes.fusion.program import Attribute, Policy, TensorType

_serial = count()


def _operator(op: str) -> Callable[[Value, Operand], Value]:
    return lambda value, other: make(op, value, other)


def _reflected(op: str) -> Callable[[Value, Operand], Value]:
    return lambda value, other: make(op, other, value)


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
        return make("Neg", self)

    def __invert__(self) -> Value:
        return make("Not", self)


Operand: TypeAlias = Value | int | float


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel, or with no policy an overlap, of the schedule."""

    policy: Policy | None
    members: tuple[Value | Launch, ...]


def make(kind: str, /, *operands: Operand, name: str | None = None, **attributes: Attribute) -> Value:
    """The operation `kind` of these operands, typed at once. Raises InputError, TypeRefusal as `infer` does."""
    for operand in operands:
        if not isinstance(operand, Value | int | float) or isinstance(operand, bool) or operand != operand:
            raise InputError(f"{kind}: found {operand!r}, expected a tensor or a number")
    read = [current(operand) if isinstance(operand, Value) else operand for operand in operands]
    return Value(kind, read, attributes, infer(kind, [_type(operand) for operand in read], attributes), name)


def current(value: Value) -> Value:
    """What reading a value means now: behind an Update of it, the Update."""
    return value if value.written is None else value.written


def _type(operand: Operand) -> TensorType | int | float:
    return operand.type if isinstance(operand, Value) else operand


def label(name: str) -> str:
    """What inputs and programs may be called: a word, even one that Python keeps for itself."""
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or name.startswith("_"):
        raise InputError(f"found the name {name!r}, expected letters, digits and underscores, and a letter first")
    return name
