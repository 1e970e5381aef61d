"""The operators themselves, with functions of the user.

A function that a plan names must be importable: defined with `def` at the top of a module. All must be pure.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

from treadle.array.lazy import Array, Operand
from treadle.array.lowering import folded, given, joined, mapped
from treadle.array.node import problem_of


def map_tiles(function: Callable[..., Any], *arrays: Operand, dtype: Any = None) -> Array:
    """`function` on tiles of the arrays at the same place; the result has their shape."""
    return mapped(name_of(function), *arrays, dtype=dtype, local=function)


def fold_tiles(
    function: Callable[..., Any], x: Operand, axis: Any = None, *, combine: str = "add", dtype: Any = None
) -> Array:
    """`function(tile, axis=..., keepdims=...)` along `axis`; two results merge by the ufunc `combine`."""
    x = given(x)
    return folded(
        name_of(function), x, axis, dtype=x.dtype if dtype is None else dtype, local=function, combine=combine
    )


def join_update(
    function: Callable[..., Any],
    arrays: Sequence[Operand],
    axes: Sequence[int],
    shape: Sequence[int],
    *,
    dtype: Any = float,
    update: Literal["each", "all"] = "each",
    combine: str = "add",
    located: bool = False,
) -> Array:
    """Cut each array along its axis (-1: not at all); `function` takes the j-th parts.

    With update `each` it returns the j-th part of axis 0 of the result. With `all` it returns a partial result of the
    whole shape, or where `located`, pairs (start, data) of what it has and where in the result that begins; the ufunc
    `combine` merges what meets.
    """
    if located and update != "all":
        raise problem_of("located results may lie anywhere: they need update `all`")
    more = {"located": [int(size) for size in shape]} if located else {}
    return joined(name_of(function), arrays, axes, shape, dtype, update=update, local=function, combine=combine, **more)


def name_of(function: Callable[..., Any]) -> str:
    """`module:function`, as plans name it."""
    return f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__name__)}"


def importable(name: str, function: Callable[..., Any]) -> bool:
    """Whether `name` leads to `function`."""
    module, path = name.split(":")
    try:
        found: Any = importlib.import_module(module)
        for word in path.split("."):
            found = getattr(found, word)
    except (ImportError, AttributeError, ValueError):
        return False
    return found is function
