"""The record of one operation that has not run yet, and where in the user's program it stands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from os.path import basename, dirname
from typing import Any

import numpy as np

from treadle.planner.passes.tiling.problem import ArrayOperator
from treadle.runtime.tiling.functions import ArrayError

_HERE = dirname(__file__)
Values = np.ndarray[Any, Any]


@dataclass(eq=False, slots=True)
class LazyNode:
    """`shape` is the most that the array may have where `ragged` is set: the node whose values decide how long axis 0
    is. `local` is a function of the user without a name to import. `handles` counts the arrays of the user that show
    this node, and `value` is what it has been evaluated to."""

    operator: ArrayOperator
    function: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    inputs: tuple[LazyNode, ...] = ()
    axes: tuple[int, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)
    update: str = "each"
    ragged: LazyNode | None = None
    local: Callable[..., Any] | None = None
    line: str = ""
    handles: int = 0
    value: Values | None = None


def line_of_program() -> str:
    """`file.py:12` of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def problem_of(message: str) -> ArrayError:
    return ArrayError(message, where=line_of_program())


def in_order(wanted: Iterable[LazyNode], known: Callable[[LazyNode], bool]) -> Iterator[LazyNode]:
    """The nodes that `wanted` need, each after its inputs; nothing before nodes that are `known`."""
    seen: set[int] = set()
    stack = [(node, False) for node in reversed(list(wanted))]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            if not known(node):
                stack.extend((each, False) for each in reversed(node.inputs) if id(each) not in seen)
