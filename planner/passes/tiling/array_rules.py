"""What the operators of arrays may do along one axis of a mesh, in the words in which a model's operators say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.problem import ArrayNode, TilingProblem, TilingRule
from treadle.planner.passes.tiling.redistribution import Shape

COMBINING = frozenset({"sum", "prod", "max", "min", "any", "all", "amax", "amin"})
"""Folds whose partial results the runtime can combine."""
WHOLE = "R"


def rules_of(problem: TilingProblem, node: ArrayNode, axis: int, shapes: dict[str, Shape]) -> tuple[TilingRule, ...]:
    """What `node` may do along `axis` of the mesh, each once. Raises InputError for rules of another arity."""
    if node.operator == "rule":
        rules = tuple(problem.rules[number] for number in node.rules)
        for rule in rules:
            if (len(rule.inputs), len(rule.outputs)) != (len(node.inputs), len(node.outputs)):
                found = f"a rule of {len(rule.inputs)} inputs and {len(rule.outputs)} outputs"
                wanted = f"{len(node.inputs)} and {len(node.outputs)}"
                raise InputError(f"found {found}, expected {wanted}", where=f"node {node.id!r}")
        return tuple(dict.fromkeys(rules))
    if node.operator == "value":
        fixed = next(array.fixed for array in problem.arrays if array.id == node.outputs[0])
        return (TilingRule(inputs=(), outputs=(WHOLE if fixed is None else fixed[axis],)),)
    sources = [shapes[name] for name in node.inputs]
    whole = ((WHOLE,) * len(sources), WHOLE)
    readings = dict.fromkeys((*_rules(node, sources, shapes[node.outputs[0]]), whole))
    return tuple(TilingRule(inputs=reads, outputs=(makes,)) for reads, makes in readings)


Reading = tuple[tuple[str, ...], str]


def _rules(node: ArrayNode, sources: Sequence[Shape], result: Shape) -> Iterator[Reading]:
    match node.operator:
        case "newarray":
            yield from (((), _cut(axis)) for axis in range(len(result)))
        case "map":
            for axis in range(len(result)):
                yield tuple(_aligned(axis, source, result) for source in sources), _cut(axis)
        case "filter":
            masked = len(sources[1]) if len(sources) > 1 else 1
            for axis in range(1, len(result)):
                yield (_cut(axis + masked - 1), *(WHOLE for _ in sources[1:])), _cut(axis)
        case "fold":
            yield from _fold(node, len(sources[0]), len(result))
        case "scan":
            kept = [axis for axis in range(len(result)) if axis not in _positive(node.axes, len(result))]
            yield from (((_cut(axis),), _cut(axis)) for axis in kept)
        case "slice":
            yield from _slice(node.params, sources[0])
        case "swapaxis":
            first, second = _positive(node.axes, len(result))
            mirrored = {first: second, second: first}
            yield from (((_cut(mirrored.get(axis, axis)),), _cut(axis)) for axis in range(len(result)))
        case "join_update":
            if node.function == "matmul":
                yield from _matmul(sources[0], sources[1], result)
            elif any(axis >= 0 for axis in node.axes):
                reads = tuple(_cut(axis) if axis >= 0 else WHOLE for axis in node.axes)
                yield reads, ("P" if node.update == "all" else _cut(0))


def _cut(axis: int) -> str:
    return f"S{axis}"


def _positive(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(axis % rank for axis in axes)


def _aligned(axis: int, source: Shape, result: Shape) -> str:
    """Where the input of a broadcast is cut so that the result is cut along `axis`."""
    there = axis + len(source) - len(result)
    return WHOLE if there < 0 or source[there] != result[axis] else _cut(there)


def _fold(node: ArrayNode, rank: int, left: int) -> Iterator[Reading]:
    folded = _positive(node.axes, rank)
    kept = [axis for axis in range(rank) if axis not in folded]
    for axis in range(rank):
        if axis in folded:
            if node.function in COMBINING:
                yield (_cut(axis),), "P"
        else:
            yield (_cut(axis),), _cut(axis if left == rank else kept.index(axis))


def _slice(params: dict[str, Any], source: Shape) -> Iterator[Reading]:
    """Cuts of axes that the region has whole and in their order."""
    dropped = set(params.get("drop", ()))
    after = 0
    for axis, (start, stop, step) in enumerate(params["region"]):
        if axis in dropped:
            continue
        if (start, stop, step) == (0, source[axis], 1):
            yield (_cut(axis),), _cut(after)
        after += 1


def _matmul(one: Shape, other: Shape, result: Shape) -> Iterator[Reading]:
    """Rows, columns, the contracted axis, and the axes of a batch that broadcast."""
    rows, columns = len(one) > 1, len(other) > 1
    if rows:
        yield (_cut(len(one) - 2), WHOLE), _cut(len(result) - 1 - columns)
    if columns:
        yield (WHOLE, _cut(len(other) - 1)), _cut(len(result) - 1)
    yield (_cut(len(one) - 1), _cut(max(len(other) - 2, 0))), "P"
    batch = len(result) - rows - columns
    for axis in range(batch):
        reads = []
        for source, own in ((one, 1 + rows), (other, 1 + columns)):
            there = axis + (len(source) - own) - batch
            reads.append(_cut(there) if there >= 0 and source[there] == result[axis] else WHOLE)
        yield (reads[0], reads[1]), _cut(axis)
