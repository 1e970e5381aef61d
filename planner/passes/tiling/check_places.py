"""Which indices of an array a worker has, by division: index i of an axis is in its chunk i // size.

A view has no indices of its own: index i of its axis is index start + i * step of its source. Sets of workers are
counted without listing them: along one axis, indices that fall into the same chunks of all cuts are counted together,
and a worker has the product over axes of what its chunks count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import NamedTuple

from treadle.planner.passes.tiling.problem import ArrayNode, TilingProblem

VIEWS = frozenset({"filter", "slice", "swapaxis"})
TWICE = {"D0": ("S0", "S1"), "D1": ("S1", "S0")}
"""The cuts of both copies, the one that is made first before the other."""
Shape = tuple[int, ...]


class AxisCut(NamedTuple):
    """Worker w has the indices i of `axis` for which (start + i * step) // chunk is `turn[w]`."""

    axis: int
    chunk: int
    turn: Sequence[int]
    start: int = 0
    step: int = 1


class TileShare(NamedTuple):
    """What each worker has of an array: all that is not cut away. Without `among` all workers have something, else
    those in it."""

    cuts: tuple[AxisCut, ...] = ()
    among: frozenset[int] | None = None

    def also(self, other: TileShare) -> TileShare:
        """What is in both."""
        among = self.among if other.among is None else other.among if self.among is None else self.among & other.among
        return TileShare((*self.cuts, *other.cuts), among)


class Origin(NamedTuple):
    """The array of which a view shows a part: axis k of the view is `axes[k]` of it, from `starts[k]` in `steps[k]`."""

    root: str
    axes: tuple[int, ...]
    starts: tuple[int, ...]
    steps: tuple[int, ...]


def copies(word: str) -> tuple[str, ...]:
    """The cuts of a tiling's copies."""
    return TWICE.get(word, (word,))


def chunk(size: int, parts: int) -> int:
    """The size of a chunk; 1 where there is nothing to cut."""
    return max(1, -(-size // parts))


def root_held(shape: Shape, word: str, workers: int) -> TileShare:
    """What workers have of an array that is no view, by a tiling with one copy."""
    if not shape:
        return TileShare((), frozenset({0}))
    if word == "B":
        rows = max(rows for rows in range(1, workers + 1) if rows * rows <= workers and workers % rows == 0)
        columns = workers // rows
        turns = [worker // columns for worker in range(workers)], [worker % columns for worker in range(workers)]
        return TileShare((AxisCut(0, chunk(shape[0], rows), turns[0]), AxisCut(1, chunk(shape[1], columns), turns[1])))
    axis = int(word[1:])
    return TileShare((AxisCut(axis, chunk(shape[axis], workers), range(workers)),))


def origins(problem: TilingProblem) -> dict[str, Origin]:
    """By array, where it lies; one that is no view lies in itself."""
    shapes = {array.id: array.shape for array in problem.arrays}
    found: dict[str, Origin] = {}
    for node in problem.nodes:
        name = node.outputs[0]
        if node.operator in VIEWS:
            found[name] = _seen(node, found[node.inputs[0]])
        else:
            rank = len(shapes[name])
            found[name] = Origin(name, tuple(range(rank)), (0,) * rank, (1,) * rank)
    return found


def _seen(node: ArrayNode, source: Origin) -> Origin:
    order = list(range(len(source.axes)))
    if node.operator == "swapaxis":
        one, other = node.axes
        order[one], order[other] = order[other], order[one]
    axes, starts, steps = (tuple(each[axis] for axis in order) for each in source[1:])
    if node.operator == "slice":
        region = node.params["region"]
        starts = tuple(start + row[0] * step for start, row, step in zip(starts, region, steps, strict=True))
        steps = tuple(step * row[2] for row, step in zip(region, steps, strict=True))
    return Origin(source.root, axes, starts, steps)


def root_word(origin: Origin, word: str) -> str | None:
    """The tiling of the root that a view's tiling is; None where it has no word."""
    place = {axis: number for number, axis in enumerate(origin.axes)}
    if word.startswith("S"):
        return f"S{origin.axes[int(word[1:])]}" if origin.axes else word
    if {place[0], place[1]} != {0, 1}:
        return None
    return f"D{origin.axes[int(word[1:])]}" if word.startswith("D") else word


def in_view(held: TileShare, origin: Origin) -> TileShare:
    """What workers have of a view of what they have of its root."""
    place = {axis: number for number, axis in enumerate(origin.axes)}
    cuts = []
    for cut in held.cuts:
        axis = place[cut.axis]
        cuts.append(cut._replace(axis=axis, start=origin.starts[axis], step=origin.steps[axis]))
    return TileShare(tuple(cuts), held.among)


def counted(shape: Shape, held: TileShare, workers: int) -> list[int]:
    """How many elements each worker has."""
    by_axis: dict[int, list[AxisCut]] = {}
    for cut in held.cuts:
        by_axis.setdefault(cut.axis, []).append(cut)
    whole = prod(size for axis, size in enumerate(shape) if axis not in by_axis)
    tables = [(cuts, _table(shape[axis], tuple((*cut[3:], cut[1]) for cut in cuts))) for axis, cuts in by_axis.items()]
    found = [0] * workers
    for worker in range(workers) if held.among is None else held.among:
        count = whole
        for cuts, table in tables:
            count *= table.get(tuple(cut.turn[worker] for cut in cuts), 0)
        found[worker] = count
    return found


def filled(shape: Shape, held: TileShare, workers: int) -> frozenset[int]:
    """The workers that have something."""
    return frozenset(worker for worker, count in enumerate(counted(shape, held, workers)) if count)


@lru_cache(maxsize=2**14)
def _table(size: int, cuts: tuple[tuple[int, int, int], ...]) -> Mapping[tuple[int, ...], int]:
    """How many indices of an axis fall into the same chunks of all cuts (start, step, chunk), by these chunks."""
    borders = {0, size}
    for start, step, length in cuts:
        last = (start + max(size - 1, 0) * step) // length
        borders.update(-((start - number * length) // step) for number in range(start // length + 1, last + 1))
    found: dict[tuple[int, ...], int] = {}
    for begin, end in pairwise(sorted(borders)):
        key = tuple((start + begin * step) // length for start, step, length in cuts)
        found[key] = found.get(key, 0) + end - begin
    return found
