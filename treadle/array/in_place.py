"""Statements that change an array: the object then shows a new lazy node.

Nothing is overwritten. Arrays share no memory, so a view that was taken before keeps its values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from treadle.array.node import problem_of


def _in_place(word: str, operator: str) -> Callable[[Any, Any], Any]:
    def apply(array: Any, other: Any) -> Any:
        return become(word, array, getattr(array, operator)(other))

    return apply


def become(operation: str, array: Any, result: Any) -> Any:
    """`array`, which shows `result` from now on: of the same shape, in its own dtype."""
    if result is NotImplemented:
        raise TypeError(f"{operation} takes an array or a number")
    have, made = array.node, result.node
    if made.shape != have.shape or made.ragged is not have.ragged:
        raise problem_of(f"{operation} on an array of shape {have.shape} makes one of {made.shape}")
    if not np.can_cast(made.dtype, have.dtype, "same_kind"):
        raise problem_of(f"{operation} on an array of {have.dtype} makes one of {made.dtype}")
    made = result.astype(have.dtype).node
    have.handles -= 1
    made.handles += 1
    array.node = made
    return array


class InPlace:
    """The in-place operators of the array object, and assignment to parts of it."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        from treadle.array.assignment import with_item

        array: Any = self
        become("an assignment", array, with_item(array, key, value))

    __iadd__ = _in_place("+=", "__add__")
    __isub__ = _in_place("-=", "__sub__")
    __imul__ = _in_place("*=", "__mul__")
    __itruediv__ = _in_place("/=", "__truediv__")
    __ifloordiv__ = _in_place("//=", "__floordiv__")
    __imod__ = _in_place("%=", "__mod__")
    __ipow__ = _in_place("**=", "__pow__")
    __imatmul__ = _in_place("@=", "__matmul__")
    __iand__ = _in_place("&=", "__and__")
    __ior__ = _in_place("|=", "__or__")
    __ixor__ = _in_place("^=", "__xor__")
    __ilshift__ = _in_place("<<=", "__lshift__")
    __irshift__ = _in_place(">>=", "__rshift__")
