"""Transformations as data: a schedule is the list of calls that derive it, which can be stored and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from inspect import signature
from typing import Any, get_type_hints

from msgspec import ValidationError, convert

from treadle.planner.errors import InputError
from treadle.planner.passes.fusion.decisions import TransformCall
from treadle.planner.passes.fusion.program import Program
from treadle.planner.passes.fusion.transforms.editing import Rewrite
from treadle.planner.passes.fusion.transforms.fusing import fuse
from treadle.planner.passes.fusion.transforms.merge import merge
from treadle.planner.passes.fusion.transforms.overlapping import overlap
from treadle.planner.passes.fusion.transforms.reorder import reorder
from treadle.planner.passes.fusion.transforms.slicing import as_slice, dead, slice_intro
from treadle.planner.passes.fusion.transforms.split import split

TRANSFORMS: dict[str, Callable[..., Rewrite]] = {
    function.__name__: function for function in (split, merge, reorder, slice_intro, as_slice, dead, fuse, overlap)
}


def apply(program: Program, call: TransformCall) -> Rewrite:
    """The program after one call. Raises InvalidTransform as the transformation does.

    Raises InputError for an unknown transformation or arguments that are not its own.
    """
    if call.transform not in TRANSFORMS:
        raise InputError(f"found transformation {call.transform!r}, expected one of {', '.join(TRANSFORMS)}")
    function = TRANSFORMS[call.transform]
    try:
        signature(function).bind(program, **call.arguments)
        for name, value in call.arguments.items():
            convert(value, _types(call.transform)[name])
    except (TypeError, ValidationError) as error:
        raise InputError(f"{call.transform}: found arguments that do not fit ({error})") from error
    return function(program, **call.arguments)


@cache
def _types(transform: str) -> dict[str, Any]:
    return get_type_hints(TRANSFORMS[transform])


def replay(program: Program, calls: Iterable[TransformCall]) -> Program:
    """The schedule that `calls`, one after the other, derive from a program. Raises as `apply`."""
    for call in calls:
        program = apply(program, call).program
    return program


def subjects(call: TransformCall) -> tuple[str, ...]:
    """Names of the operations in its arguments."""
    return tuple(
        name
        for _, value in sorted(call.arguments.items())
        for name in (value if isinstance(value, list) else [value])
        if isinstance(name, str) and value != call.arguments.get("policy")
    )
