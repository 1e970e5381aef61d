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
    """A program, as text; it occurs `count` times in the step, first at `where`."""

    name: str
    text: str
    extents: Mapping[str, int]
    parallel: Literal["data", "tensor"]
    """The ranks that share it: all, or those that share a layer."""
    count: int
    where: str
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    assumed: str = ""
    """What the trace does not state and is assumed."""


@dataclass(frozen=True)
class NoMatch:
    """A place in the trace that does not match, and why."""

    what: str
    why: str


def dtype_of(name: str | None, what: str) -> Dtype:
    """Raises InputError for element types that cannot be summed."""
    if name not in DTYPES:
        raise InputError(f"found {what} of dtype {name}, expected one of {', '.join(DTYPES)}")
    return DTYPES[name]
