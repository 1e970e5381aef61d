"""Evaluation: the graph behind arrays runs when a value is needed, or when it has grown to the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from treadle.array.node import LazyNode, Values, in_order
from treadle.array.settings import CAPTURING, CURRENT
from treadle.planner.errors import InputError
from treadle.runtime.tiling.filled import filled
from treadle.runtime.tiling.functions import ArrayError, called

_pending = 0
"""Operations since the last evaluation: the graph behind any array has at most that many."""


def values_of(wanted: Sequence[LazyNode]) -> list[Values]:
    """The values of `wanted`, evaluated together; they are kept, and what led to them is let go."""
    global _pending
    if any(node.value is None for node in wanted):
        _pending = 0
        if CURRENT.get().engine == "tiles" and not CAPTURING.get():
            from treadle.array.planned import evaluate_by_tiles

            evaluate_by_tiles(wanted)
        else:
            _evaluate(wanted)
    return [node.value for node in wanted if node.value is not None]


def counted(node: LazyNode) -> LazyNode:
    """`node`, evaluated where the graph has reached the limit."""
    global _pending
    _pending += 1
    if _pending >= CURRENT.get().limit and not CAPTURING.get():
        values_of([node])
    return node


def settle(node: LazyNode, value: Values) -> None:
    """Let `node` be `value`. While a program is captured its graph stays as well."""
    value.flags.writeable = False
    node.value = value
    if not CAPTURING.get():
        node.operator, node.function, node.inputs, node.params, node.axes = "value", "value", (), {}, ()
        node.shape, node.ragged, node.local = value.shape, None, None


def _called(node: LazyNode, tiles: list[Values]) -> Values:
    try:
        return called(node, tiles, node.dtype, node.local)
    except InputError as error:
        raise ArrayError(str(error.args[0]), where=node.line) from error


def _evaluate(wanted: Sequence[LazyNode]) -> None:
    nodes = list(in_order(wanted, lambda node: node.value is not None))
    readers = Counter(id(each) for node in nodes if node.value is None for each in node.inputs)
    kept = {id(node) for node in wanted}
    if CURRENT.get().cache:
        kept |= {id(node) for node in nodes if node.handles}
    values: dict[int, Values] = {}
    for node in nodes:
        if node.value is not None:
            values[id(node)] = node.value
            continue
        tiles = [values[id(each)] for each in node.inputs]
        if node.operator == "newarray":
            values[id(node)] = filled(node.shape, node.dtype, None, node.params)
        else:
            values[id(node)] = _called(node, tiles)
        for each in node.inputs:
            readers[id(each)] -= 1
            if not readers[id(each)]:
                values.pop(id(each), None) if id(each) not in kept else None
    for node in nodes:
        if id(node) in kept and node.value is None:
            settle(node, values[id(node)])
