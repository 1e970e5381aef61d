"""Whether an operator may run as a plan says along one axis of the mesh: what it reads against what it makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product

from treadle.planner.passes.tiling.check_moves import CheapestMoves
from treadle.planner.passes.tiling.problem import ArrayNode, ArrayTiling, TiledArray, TilingProblem

COMBINED = frozenset({"sum", "prod", "max", "min", "any", "all", "amax", "amin"})
"""Folds whose partial results can be combined by a collective."""
Shape = tuple[int, ...]
AxisRule = tuple[tuple[str, ...], tuple[str, ...]]
"""How inputs are read, and results made."""


class RuleCheck:
    """The rules of all operators of one problem."""

    def __init__(self, problem: TilingProblem) -> None:
        self.problem = problem
        self.arrays = {array.id: array for array in problem.arrays}
        self.shapes = {array.id: array.shape for array in problem.arrays}

    def options(self, node: ArrayNode, place: int) -> list[AxisRule]:
        """What the operator may read and make on axis `place` of the mesh."""
        if node.operator == "rule":
            return [(self.problem.rules[number].inputs, self.problem.rules[number].outputs) for number in node.rules]
        sources, made = [self.shapes[name] for name in node.inputs], self.shapes[node.outputs[0]]
        if node.operator == "value":
            fixed = self.arrays[node.outputs[0]].fixed
            return [((), ("R" if fixed is None else fixed[place],))]
        whole = (("R",) * len(sources), ("R",))
        return [whole, *((tuple(reads), (makes,)) for reads, makes in _cuts(node, sources, made))]

    def tilings(self, array: TiledArray, moves: CheapestMoves) -> list[ArrayTiling]:
        """The tilings that an array may have, but for those of other arrays."""
        if array.fixed is not None:
            return [array.fixed]
        words = [*(f"S{axis}" for axis in range(len(array.shape))), "R", *("P" if array.id in self.partial else "")]
        found = product(words, repeat=len(self.problem.mesh))
        return [tiling for tiling in found if moves.divides(tiling, array.shape)]

    @cached_property
    def partial(self) -> set[str]:
        """Arrays that may stay partial results: those that a rule leaves so, but for what the step returns or keeps."""
        found = {
            name
            for node in self.problem.nodes
            for rule in dict.fromkeys(node.rules)
            for name, word in zip(node.outputs, self.problem.rules[rule].outputs, strict=False)
            if word == "P"
        }
        return found - {*self.problem.outputs} - {each.id for each in self.problem.arrays if each.kept_item_bytes}


def _cuts(node: ArrayNode, sources: Sequence[Shape], made: Shape) -> Iterator[tuple[list[str], str]]:
    """The rules of an operator of arrays that cut something: what it reads, what it makes."""
    match node.operator:
        case "newarray":
            yield from (([], f"S{axis}") for axis in range(len(made)))
        case "map":
            for axis in range(len(made)):
                yield [_broadcast(source, made, axis) for source in sources], f"S{axis}"
        case "filter":
            masked = len(sources[1]) if len(sources) > 1 else 1
            for axis in range(1, len(made)):
                yield [f"S{axis + masked - 1}", *["R"] * (len(sources) - 1)], f"S{axis}"
        case "fold" | "scan":
            yield from _along(node, sources[0], made)
        case "slice":
            for axis, row in enumerate(node.params["region"]):
                if [*row] == [0, sources[0][axis], 1]:
                    yield [f"S{axis}"], f"S{axis}"
        case "swapaxis":
            order = list(range(len(made)))
            one, other = node.axes
            order[one], order[other] = order[other], order[one]
            yield from (([f"S{axis}"], f"S{place}") for place, axis in enumerate(order))
        case "join_update" if node.function == "matmul":
            yield from _matmul(sources[0], sources[1], made)
        case "join_update":
            reads = ["R" if axis < 0 else f"S{axis}" for axis in node.axes]
            if {*reads} != {"R"}:
                yield reads, "P" if node.update == "all" else "S0"


def _broadcast(source: Shape, made: Shape, axis: int) -> str:
    own = axis - (len(made) - len(source))
    return f"S{own}" if own >= 0 and source[own] == made[axis] else "R"


def _along(node: ArrayNode, source: Shape, made: Shape) -> Iterator[tuple[list[str], str]]:
    """Folds and scans: other axes stay cut; partial results of a folded axis that is cut are combined later."""
    axes = {axis % len(source) for axis in node.axes}
    for axis in range(len(source)):
        if axis not in axes:
            before = 0 if len(made) == len(source) else sum(each < axis for each in axes)
            yield [f"S{axis}"], f"S{axis - before}"
        elif node.operator == "fold" and node.function in COMBINED:
            yield [f"S{axis}"], "P"


def _matmul(one: Shape, other: Shape, made: Shape) -> Iterator[tuple[list[str], str]]:
    """What is cut may be the rows of the first matrix, the columns of the second, what both share, or the batch."""
    rows, columns = len(one) >= 2, len(other) >= 2
    if rows:
        yield [f"S{len(one) - 2}", "R"], f"S{len(made) - (2 if columns else 1)}"
    if columns:
        yield ["R", f"S{len(other) - 1}"], f"S{len(made) - 1}"
    yield [f"S{len(one) - 1}", f"S{max(0, len(other) - 2)}"], "P"
    batch = len(made) - rows - columns
    for axis in range(batch):
        yield (
            [
                _broadcast(source[: len(source) - inner], made[:batch], axis)
                for source, inner in ((one, 1 + rows), (other, 1 + columns))
            ],
            f"S{axis}",
        )
