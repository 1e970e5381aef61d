"""The operations of programs: how many operands, which attributes, what kind of work (CoCoNet, section 2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from treadle.planner.documents.nearest import meant
from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.program import Attribute

Kind = Literal["pointwise", "reduction", "layer", "collective", "transfer", "view"]


@dataclass(frozen=True)
class Operation:
    """`attributes` are all that a node of it has, with their defaults, or REQUIRED."""

    name: str
    kind: Kind
    arity: int
    attributes: tuple[tuple[str, Attribute], ...] = ()


REQUIRED = "<required>"
FLOAT_UNARY = ("Sqrt", "Rsqrt", "Exp", "Log", "Tanh", "GeLU", "SiLU", "Sigmoid")
UNARY = ("Neg", *FLOAT_UNARY, "ReLU", "Abs", "Not")
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min")
COMPARISONS = ("Eq", "Ne", "Lt", "Le", "Gt", "Ge")
LOGIC = ("And", "Or", "Xor")
BINARY = (*ARITHMETIC, *COMPARISONS, *LOGIC)
REDUCTIONS = ("+", "max", "min")
"""What ReduceTensor, AllReduce, ReduceScatter and Reduce combine elements with."""

_SLICE: tuple[tuple[str, Attribute], ...] = (("dim", -1), ("map", "block"))
_OVER: tuple[tuple[str, Attribute], ...] = (("dim", None), ("per", None))
OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        *(Operation(name, "pointwise", 1) for name in UNARY),
        *(Operation(name, "pointwise", 2) for name in BINARY),
        Operation("Cast", "pointwise", 1, (("dtype", REQUIRED),)),
        Operation("Dropout", "pointwise", 1, (("key", REQUIRED), ("p", REQUIRED))),
        Operation("Where", "pointwise", 3),
        Operation("Update", "pointwise", 2),
        Operation("GroupSize", "pointwise", 0, (("dtype", "f32"),)),
        Operation("MatMul", "layer", 2),
        Operation("Conv2d", "layer", 2, (("padding", 0), ("stride", 1))),
        Operation("Permute", "layer", 2),
        Operation("ReduceTensor", "reduction", 1, (*_OVER, ("op", REQUIRED))),
        Operation("Norm", "reduction", 1, _OVER),
        Operation("Slice", "view", 1, _SLICE),
        Operation("Load", "view", 1, (("root", REQUIRED),)),
        Operation("AllReduce", "collective", 1, (("op", REQUIRED),)),
        Operation("ReduceScatter", "collective", 1, (*_SLICE, ("op", REQUIRED))),
        Operation("AllGather", "collective", 1),
        Operation("Reduce", "collective", 1, (("op", REQUIRED), ("root", REQUIRED))),
        Operation("Broadcast", "collective", 1, (("root", REQUIRED),)),
        Operation("AllToAll", "collective", 1),
        Operation("Send", "transfer", 1, (("to", 1),)),
    )
}


def operation(name: str) -> Operation:
    """Raises InputError for a name that is none."""
    if name not in OPERATIONS:
        raise InputError(f"found operation {name!r}, {meant(name, sorted(OPERATIONS))}")
    return OPERATIONS[name]


def pointwise(name: str) -> bool:
    """Whether it computes each element from the same elements. Raises InputError for a name that is no operation."""
    return operation(name).kind == "pointwise"


def completed(name: str, attributes: Mapping[str, Attribute]) -> tuple[tuple[str, Attribute], ...]:
    """All attributes of a node, sorted by name, the ones not given at their defaults. Raises InputError."""
    known = dict(operation(name).attributes)
    for given in attributes:
        if given not in known:
            expected = ", ".join(known) or "none"
            raise InputError(f"{name}: found attribute {given!r}, expected {expected}")
    whole = {**known, **attributes}
    for key, value in whole.items():
        if value == REQUIRED:
            raise InputError(f"{name}: found no {key}, expected one")
    return tuple(sorted(whole.items()))
