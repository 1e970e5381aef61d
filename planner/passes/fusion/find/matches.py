"""What was found in a trace: a program, the extents it is for, and where in the step it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from treadle.planner.errors import InputError
from treadle.planner.machine.dtypes import Dtype

DTYPES: dict[str, Dtype] = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}


@dataclass(frozen=True)
class Match:
    """`text` is the program; it stands `count` times in the step, first at `where`."""

    name: str
    text: str
    extents: Mapping[str, int]
    parallel: Literal["data", "tensor"]
    """Which ranks it is shared by: all of them, or those that share a layer."""
    count: int
    where: str
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    assumed: str = ""
    """What the trace does not tell and was taken for granted."""


@dataclass(frozen=True)
class NoMatch:
    """A place that was looked at and passed over."""

    what: str
    why: str


def dtype_of(name: str | None, what: str) -> Dtype:
    """Raises InputError for element types that cannot be summed."""
    if name not in DTYPES:
        raise InputError(f"found {what} of dtype {name}, expected one of {', '.join(DTYPES)}")
    return DTYPES[name]
