"""What the rules share: what is asked of operands and attributes, and how they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, TypeAlias

from treadle.planner.documents.nearest import meant
from treadle.planner.machine.dtypes import BYTES, Dtype
from treadle.planner.passes.fusion.layouts import WORLD, Group, Replicated, layout_text
from treadle.planner.passes.fusion.operations import REDUCTIONS
from treadle.planner.passes.fusion.program import Attribute, TensorType
from treadle.planner.passes.fusion.refusal import TypeRefusal

Argument: TypeAlias = TensorType | int | float


def scalar(of: TensorType) -> bool:
    """Without dimensions and available everywhere."""
    return not of.shape and isinstance(of.layout, Replicated)


def common_group(op: str, types: Sequence[TensorType], row: str) -> Group:
    """The group of all operands; scalars of WORLD are available everywhere."""
    groups = list(dict.fromkeys(of.group for of in types if not (scalar(of) and of.group == WORLD)))
    if len(groups) > 1:
        refuse(op, row, f"found operands on {' and '.join(map(str, groups))}, expected one group; write Send")
    return groups[0] if groups else WORLD


def check_numbers(op: str, types: Sequence[TensorType]) -> None:
    """Raises TypeRefusal (dtype) unless all are numbers of one dtype."""
    dtypes = sorted({of.dtype for of in types})
    if len(dtypes) > 1 or dtypes == ["bool"]:
        refuse(op, "dtype", f"found {' and '.join(dtypes)}, expected numbers of one dtype; write Cast")


def check_reduction(op: str, by: Attribute) -> None:
    """Raises TypeRefusal (row 19) for what elements cannot be combined by."""
    if by not in REDUCTIONS:
        refuse(op, "19", f"found op {by!r}, {meant(str(by), REDUCTIONS)}")


def whole_number(op: str, name: str, value: Attribute) -> int:
    """The attribute as a number. Raises TypeRefusal (shape)."""
    if not isinstance(value, int) or isinstance(value, bool):
        refuse(op, "shape", f"found {name}={value!r}, expected a whole number")
    return value


def dtype_named(op: str, name: Attribute) -> Dtype:
    """The attribute as an element type. Raises TypeRefusal (dtype)."""
    if name not in BYTES:
        refuse(op, "dtype", f"found dtype {name!r}, {meant(str(name), BYTES)}")
    return name


def layouts_text(types: Sequence[TensorType]) -> str:
    """Layouts as messages name them."""
    return " and ".join(layout_text(of.layout) for of in types)


def refuse(op: str, row: str, message: str) -> NoReturn:
    """Raises TypeRefusal."""
    raise TypeRefusal(op, row, message)
