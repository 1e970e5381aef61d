"""What a published problem moves for a pair of tilings, counted by the checker: elements by both models of cost.

Sums over pairs of workers are sums over elements: a partial result that another worker owns is any partial result,
less those that are at home already.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from treadle.planner.passes.tiling.check_places import (
    TWICE,
    VIEWS,
    AxisCut,
    Shape,
    TileShare,
    chunk,
    copies,
    counted,
    filled,
    in_view,
    origins,
    root_held,
    root_word,
)
from treadle.planner.passes.tiling.problem import ArrayNode, TilingProblem


class Elements(NamedTuple):
    """By the estimates of the paper, and by counting."""

    seed: int = 0
    exact: int = 0


class Folded(NamedTuple):
    """A fold or scan: what it moves, which copy it reads, how it leaves its result."""

    elements: Elements
    reads: str
    makes: str


class CountedElements:
    """Counts of one problem. Tilings are words: `t` of what is read, `u` of the result."""

    def __init__(self, problem: TilingProblem) -> None:
        self.problem, self.workers = problem, problem.mesh[0].size
        self.shapes = {array.id: array.shape for array in problem.arrays}
        self.makers = {node.outputs[0]: node for node in problem.nodes}
        self.origins = origins(problem)

    def size(self, name: str) -> int:
        return prod(self.shapes[name])

    def is_view(self, name: str) -> bool:
        return self.makers[name].operator in VIEWS

    def held(self, name: str, word: str) -> tuple[TileShare, ...]:
        """What workers have of an array: of one copy, or of each of two."""
        origin = self.origins[name]
        root = root_word(origin, word)
        assert root is not None, "tilings of views were found to have a word"
        shape = self.shapes[origin.root]
        return tuple(in_view(root_held(shape, copy, self.workers), origin) for copy in copies(root))

    def total(self, name: str, held: TileShare) -> int:
        return sum(counted(self.shapes[name], held, self.workers))

    def lacking(self, name: str, needed: TileShare, has: tuple[TileShare, ...]) -> int:
        """Elements that workers need and have in no copy."""
        found = self.total(name, needed) - sum(self.total(name, needed.also(each)) for each in has)
        return found + (self.total(name, needed.also(has[0]).also(has[1])) if len(has) == 2 else 0)

    def second_copy(self, name: str, word: str) -> Elements:
        if word not in TWICE or self.is_view(name):
            return Elements()
        made, second = self.held(name, word)
        return Elements(self.size(name), self.lacking(name, second, (made,)))

    def map_read(self, name: str, result: str, t: str, u: str) -> Elements:
        shape, whole, first = self.shapes[name], self.shapes[result], copies(u)[0]
        exact = self.lacking(name, self._projected(name, result, first), self.held(name, t))
        size = self.size(name)
        if shape == whole:
            return Elements(0 if first in copies(t) else size, exact)
        needs = [each for each in ("S0", "S1") if self.read_word(name, result, each) != "R"] if u == "B" else []
        reads = self.read_word(name, result, first)
        if u == "B":
            return Elements(size if needs else self.workers * size, exact)
        return Elements(self.workers * size if reads == "R" else 0 if reads in copies(t) else size, exact)

    def read_word(self, name: str, result: str, first: str) -> str:
        """The tiling in which a map whose result has `first` reads an input: R where it needs all, or what no word of
        its own shape says."""
        shape, whole = self.shapes[name], self.shapes[result]
        if shape == whole:
            return first
        before = len(whole) - len(shape)
        if first == "B":
            return "B" if not before and 1 not in shape[:2] else "R"
        axis = int(first[1:]) - before
        return f"S{axis}" if axis >= 0 and shape[axis] != 1 else "R"

    def mask_read(self, mask: str, view: str, t: str, u: str) -> Elements:
        """The mask of a filter, for the rows of each copy of its view."""
        exact = 0
        for copy in self.held(view, u):
            rows = TileShare(
                tuple(cut for cut in copy.cuts if not cut.axis), filled(self.shapes[view], copy, self.workers)
            )
            exact += self.lacking(mask, rows, self.held(mask, t))
        return Elements(0, exact)

    def fold(self, node: ArrayNode, t: str, u: str) -> Folded:
        """By the cheaper of two copies, the first if both cost the same."""
        return min(
            (self._fold_copy(node, word, held, u) for word, held in zip(copies(t), self._copies(node, t), strict=True)),
            key=lambda found: found.elements.seed if self.problem.model == "seed" else found.elements.exact,
        )

    def join_read(self, node: ArrayNode, number: int, t: str) -> Elements:
        name, axis = node.inputs[number], node.axes[number]
        cuts = (AxisCut(axis, chunk(self.shapes[name][axis], self.workers), range(self.workers)),) if axis >= 0 else ()
        exact = self.lacking(name, TileShare(cuts, self.tasks(node)), self.held(name, t))
        size = self.size(name)
        if axis < 0:
            return Elements(self.workers * size, exact)
        return Elements(0 if f"S{axis}" in copies(t) else size, exact)

    def tasks(self, node: ArrayNode) -> frozenset[int]:
        """The workers with a chunk of every input that is cut; worker 0 where none is."""
        cut = [self.shapes[name][axis] for name, axis in zip(node.inputs, node.axes, strict=True) if axis >= 0]
        chunks = min((-(-size // chunk(size, self.workers)) for size in cut), default=1)
        return frozenset(range(chunks))

    def update(self, node: ArrayNode, u: str) -> Elements:
        name = node.outputs[0]
        size, held, tasks = self.size(name), self.held(name, u)[0], self.tasks(node)
        if node.update == "all" or max(node.axes) < 0:
            own = counted(self.shapes[name], held, self.workers)
            exact = size * len(tasks) - sum(own[task] for task in tasks)
        else:
            exact = self.lacking(name, held, (root_held(self.shapes[name], "S0", self.workers),))
        seed = size * (self.workers if node.update == "all" else 1)
        return Elements(seed if node.observed_update is None else node.observed_update, exact)

    def _copies(self, node: ArrayNode, t: str) -> tuple[TileShare, ...]:
        return self.held(node.inputs[0], t)

    def _projected(self, name: str, result: str, first: str) -> TileShare:
        """What a map reads of an input for the first copy of its result: along axes that the input does not have, the
        workers that have something."""
        shape, whole = self.shapes[name], self.shapes[result]
        before = len(whole) - len(shape)
        held = root_held(whole, first, self.workers)
        cuts = [
            cut._replace(axis=cut.axis - before)
            for cut in held.cuts
            if cut.axis >= before and (shape == whole or shape[cut.axis - before] != 1)
        ]
        return TileShare(tuple(cuts), filled(whole, held, self.workers))

    def _fold_copy(self, node: ArrayNode, word: str, held: TileShare, u: str) -> Folded:
        source, result = node.inputs[0], node.outputs[0]
        shape, made = self.shapes[source], self.shapes[result]
        axes = {axis % max(1, len(shape)) for axis in node.axes}
        cut = bool(axes & ({0, 1} if word == "B" else {int(word[1:])}))
        scan = node.operator == "scan"
        falls = word if scan else _left(word, axes, shape, made)
        needed = self.held(result, u)[0]
        if scan:
            exact = self.lacking(result, needed, (held,)) + (self._chain(source, held, min(axes)) if cut else 0)
        else:
            partial = self._partial(held, axes, shape, made)
            exact = self.total(result, partial) - self.total(result, partial.also(needed))
        whole = self.size(source) if cut else 0 if copies(u)[0] == falls else self.size(result)
        return Folded(Elements(whole, exact), word, "P" if cut and not scan else falls)

    def _partial(self, held: TileShare, axes: set[int], shape: Shape, made: Shape) -> TileShare:
        """The part of a fold's result to which each worker has something to add."""
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        place = {axis: axis if len(made) == len(shape) else kept.index(axis) for axis in kept}
        cuts = tuple(cut._replace(axis=place[cut.axis]) for cut in held.cuts if cut.axis in place)
        return TileShare(cuts, filled(shape, held, self.workers))

    def _chain(self, name: str, held: TileShare, axis: int) -> int:
        """Running totals that each chunk of the scanned axis passes to the next."""
        shape = self.shapes[name]
        cut = next(each for each in held.cuts if each.axis == axis)
        chunks = {cut.turn[worker] for worker in filled(shape, held, self.workers)}
        return max(0, len(chunks) - 1) * (self.size(name) // max(1, shape[axis]))


def _left(word: str, axes: set[int], shape: Shape, made: Shape) -> str:
    """The tiling in which a fold of whole lines leaves its result."""
    if word == "B" or len(made) == len(shape):
        return word
    axis = int(word[1:])
    return f"S{axis - sum(each < axis for each in axes)}" if len(made) > 1 else "S0"
