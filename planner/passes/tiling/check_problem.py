"""Whether the operators of a problem are calls that can be counted: numbers of arrays, axes, shapes."""

from __future__ import annotations

from collections.abc import Iterator

from numpy import broadcast_shapes

from treadle.planner.passes.tiling.check_published import Finding
from treadle.planner.passes.tiling.problem import ArrayNode, TilingProblem

Shape = tuple[int, ...]
SOURCES = {"newarray": (0, 0), "value": (0, 0), "map": (1, 64), "join_update": (1, 64), "filter": (1, 2)}
"""Least and most inputs; one for all others."""


def problem_findings(problem: TilingProblem) -> Iterator[Finding]:
    """What of a problem the checker cannot count."""
    made = {name for node in problem.nodes for name in node.outputs}
    order = {array.id: place for place, array in enumerate(problem.arrays)}
    if len(order) < len(problem.arrays):
        yield "$.decisions.problem.arrays", "one name twice", "arrays with names of their own"
        return
    for place, array in enumerate(problem.arrays):
        path = f"$.decisions.problem.arrays[{place}]"
        if array.id not in made:
            yield f"{path}.id", array.id, "an array that an operator makes"
        for name in ("like", "shares"):
            other = getattr(array, name)
            if other is not None and order.get(other, place) >= place:
                yield f"{path}.{name}", other, "an earlier array"
    for name in problem.outputs:
        if name not in made:
            yield "$.decisions.problem.outputs", name, "an array that an operator makes"
    shapes = {array.id: array.shape for array in problem.arrays}
    for place, node in enumerate(problem.nodes):
        if node.operator == "rule":
            yield from _rules(problem, place, node)
            continue
        wrong = _call(node, [shapes[name] for name in node.inputs], [shapes[name] for name in node.outputs])
        if wrong:
            yield f"$.decisions.problem.nodes[{place}]", wrong, f"a call that {node.operator} can be"


def _rules(problem: TilingProblem, place: int, node: ArrayNode) -> Iterator[Finding]:
    for number in node.rules:
        rule = problem.rules[number]
        if (len(rule.inputs), len(rule.outputs)) != (len(node.inputs), len(node.outputs)):
            found = f"rule {number} of {len(rule.inputs)} inputs and {len(rule.outputs)} results"
            yield f"$.decisions.problem.nodes[{place}].rules", found, f"those of {node.id}"


def _call(node: ArrayNode, sources: list[Shape], results: list[Shape]) -> str:
    """What is wrong with a call; nothing for a sound one."""
    least, most = SOURCES.get(node.operator, (1, 1))
    if len(results) != 1:
        return f"{len(results)} results"
    if not least <= len(sources) <= most:
        return f"{len(sources)} inputs"
    result = results[0]
    match node.operator:
        case "map":
            odd = [shape for shape in sources if not _broadcasts(shape, result)]
            return f"an input of shape {odd[0]} for a result of {result}" if odd else ""
        case "join_update":
            sound = len(node.axes) == len(sources) and all(
                -1 <= axis < len(shape) for axis, shape in zip(node.axes, sources, strict=True)
            )
            if not sound:
                return f"axes {node.axes} of shapes {sources}"
            fits = node.function != "matmul" or _product(sources) == result
            return "" if fits else f"a product of shapes {sources} into {result}"
        case "filter":
            odd_mask = sources[1:] and sources[1] != sources[0][: len(sources[1])]
            return f"a mask of shape {sources[1]}" if odd_mask else _view(node, sources[0], result)
        case "slice" | "swapaxis":
            return _view(node, sources[0], result)
        case "fold" | "scan":
            return _along(node, sources[0], result)
    return ""


def _broadcasts(shape: Shape, result: Shape) -> bool:
    ends = result[len(result) - len(shape) :]
    return len(shape) <= len(result) and all(one in (1, whole) for one, whole in zip(shape, ends, strict=True))


def _product(sources: list[Shape]) -> Shape | None:
    """The shape of a product of matrices, or of batches of them; None for shapes that do not fit."""
    if len(sources) != 2 or not all(sources):
        return None
    one, other = sources
    if one[-1] != other[max(0, len(other) - 2)]:
        return None
    try:
        batch = broadcast_shapes(one[:-2], other[:-2])
    except ValueError:
        return None
    return (*batch, *one[-2:-1], *(other[-1:] if len(other) > 1 else ()))


def _along(node: ArrayNode, source: Shape, result: Shape) -> str:
    rank = len(source)
    if not node.axes or not all(-rank <= axis < rank for axis in node.axes):
        return f"axes {node.axes} of shape {source}"
    if len({axis % rank for axis in node.axes}) < len(node.axes):
        return f"axes {node.axes}, one of them twice"
    if node.operator == "scan":
        return "" if result == source and len(node.axes) == 1 else f"a result of shape {result}"
    gone = {axis % rank for axis in node.axes}
    without = tuple(size for axis, size in enumerate(source) if axis not in gone)
    ones = tuple(1 if axis in gone else size for axis, size in enumerate(source))
    return "" if result in (without, ones) else f"a result of shape {result}"


def _view(node: ArrayNode, source: Shape, result: Shape) -> str:
    rank, wrong = len(source), f"a result of shape {result} from {source}"
    if len(result) != rank:
        return wrong
    if node.operator == "filter":
        return "" if all(one <= other for one, other in zip(result, source, strict=True)) else wrong
    if node.operator == "swapaxis":
        if len(node.axes) != 2 or not all(-rank <= axis < rank for axis in node.axes):
            return f"axes {node.axes}"
        order = list(source)
        one, other = node.axes
        order[one], order[other] = order[other], order[one]
        return "" if tuple(order) == result else wrong
    region = node.params.get("region")
    if not isinstance(region, list | tuple) or len(region) != rank or not all(map(_is_row, region)):
        return f"a region {region}"
    sizes = tuple(len(range(*row)) for row in region)
    inside = all(row[1] <= size for row, size in zip(region, source, strict=True))
    return "" if sizes == result and inside else wrong


def _is_row(row: object) -> bool:
    return (
        isinstance(row, list | tuple)
        and len(row) == 3
        and all(type(each) is int for each in row)
        and 0 <= row[0] <= row[1]
        and row[2] >= 1
    )
