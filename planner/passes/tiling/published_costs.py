"""What operators move for each pair of tilings, in elements: by the estimates of Spartan (`seed`), and counted on tile
maps (`exact`).

    event                                      seed                              exact
    map, an input cut otherwise                |S|, p|S| if each needs all       what workers lack for their result
    fold, a folded axis is cut                 |S|                               partial results that leave their worker
    scan, the scanned axis is cut              |S|                               totals passed on, and the move
    fold or scan, not cut                      0, |D| to another tiling          what workers lack
    join, input not cut along its join axis    |S|; p|S| where all of it joins   what workers lack for their task
    join, update                               |D|; p|D| where each task updates all, or what a run observed
    second copy                                |A|                               what workers lack for it
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from treadle.planner.passes.tiling.problem import ArrayNode
from treadle.planner.passes.tiling.tile_maps import (
    COPIES,
    Boxes,
    Shape,
    TileMaps,
    chunks,
    copies,
    first_map,
    meet,
    missing,
    only,
    padded,
    tiles,
    volumes,
)

WHOLE = "R"
PARTIAL = "P"


class Moved(NamedTuple):
    """Elements by both models."""

    seed: int
    exact: int


class FoldCost(NamedTuple):
    """What a fold or scan moves if it reads the copy of label `reads` and leaves its result as `makes`."""

    moved: Moved
    reads: str
    makes: str


def serves(held: str, needed: str) -> bool:
    """Whether an array under `held` need not be moved to be read as `needed`: both have a map in common that is there
    first, or is one of two copies."""
    return first_map(needed) in copies(held)


class PublishedCosts:
    """All figures of a published problem. Labels are those of arrays, `t` of what is read and `u` of the result."""

    def __init__(self, maps: TileMaps) -> None:
        self.maps = maps
        self.workers = maps.workers

    def second_copy(self, name: str, label: str) -> Moved:
        """Making the second copy of an array."""
        if label not in COPIES or self.maps.is_view(name):
            return Moved(0, 0)
        made, second = self.maps.held(name, label)
        return Moved(self.maps.size(name), missing(second, (made,)))

    def map_read(self, name: str, result: str, t: str, u: str) -> Moved:
        """Reading an input of a map whose result has the tiling u."""
        whole, shape = self.maps.shape(result), self.maps.shape(name)
        needed = projected(self.maps.first(result, u), whole, shape)
        exact = missing(needed, self.maps.held(name, t))
        if shape == whole:
            return Moved(0 if serves(t, u) else self.maps.size(name), exact)
        return Moved(self._broadcast(name, whole, t, first_map(u)), exact)

    def mask_read(self, mask: str, view: str, t: str, u: str) -> Moved:
        """Reading the mask of a filter where the rows of its view are, for each copy of that."""
        needed = (only(boxes[:, :1], volumes(boxes) > 0) for boxes in self.maps.held(view, u))
        return Moved(0, sum(missing(rows, self.maps.held(mask, t)) for rows in needed))

    def fold(self, node: ArrayNode, t: str, u: str, model: str) -> FoldCost:
        """A fold or scan by the cheaper of two copies, the first if both cost the same."""
        options = [self._fold_copy(node, place, copy, t, u) for place, copy in enumerate(copies(t))]
        return min(options, key=lambda option: getattr(option.moved, model))

    def join_read(self, node: ArrayNode, reading: int, t: str) -> Moved:
        """Reading an input of a join_update in all of its tasks."""
        name, axis = node.inputs[reading], node.axes[reading]
        exact = missing(self.join_needs(node, reading), self.maps.held(name, t))
        if axis < 0:
            return Moved(self.workers * self.maps.size(name), exact)
        return Moved(0 if f"S{axis}" in copies(t) else self.maps.size(name), exact)

    def join_needs(self, node: ArrayNode, reading: int) -> Boxes:
        """What each worker reads of an input for its task."""
        shape, axis = self.maps.shape(node.inputs[reading]), node.axes[reading]
        boxes = tiles(shape, f"S{axis}", self.workers) if axis >= 0 else whole_boxes(shape, self.workers)
        return only(boxes, self.tasks(node))

    def tasks(self, node: ArrayNode) -> Any:
        """Which workers have a task: those with a chunk of all inputs that are cut; worker 0 where none is."""
        found = np.arange(self.workers) == 0
        cut = [(name, axis) for name, axis in zip(node.inputs, node.axes, strict=True) if axis >= 0]
        if cut:
            found = np.full(self.workers, True)
        for name, axis in cut:
            found &= volumes(chunks(self.maps.shape(name)[axis], self.workers)[:, None]) > 0
        return found

    def update(self, node: ArrayNode, u: str) -> Moved:
        """Moving what the tasks of a join_update emit to its result."""
        name = node.outputs[0]
        size, held, tasks = self.maps.size(name), self.maps.first(name, u), self.tasks(node)
        alone = all(axis < 0 for axis in node.axes)
        if node.update == "all" or alone:
            exact = int((volumes(held) * (int(tasks.sum()) - tasks)).sum())
        else:
            exact = missing(held, (tiles(self.maps.shape(name), "S0", self.workers),))
        seed = size * self.workers if node.update == "all" else size
        return Moved(seed if node.observed_update is None else node.observed_update, exact)

    def _broadcast(self, name: str, whole: Shape, t: str, u: str) -> int:
        shape, size = self.maps.shape(name), self.maps.size(name)
        if u == "B":
            there = [aligned(axis, whole, shape) is not None for axis in (0, 1)]
            return size if any(there) else self.workers * size
        axis = aligned(int(u[1:]), whole, shape)
        if axis is None:
            return self.workers * size
        return 0 if f"S{axis}" in copies(t) else size

    def _fold_copy(self, node: ArrayNode, place: int, copy: str, t: str, u: str) -> FoldCost:
        source, result = node.inputs[0], node.outputs[0]
        tile, held = self.maps.held(source, t)[place], self.maps.first(result, u)
        cut, scan = is_cut(node, copy, len(self.maps.shape(source))), node.operator == "scan"
        falls = copy if scan else falls_out(node, copy, self.maps.shape(source), self.maps.shape(result))
        seed = self.maps.size(source) if cut else 0 if serves(falls, u) else self.maps.size(result)
        if scan:
            exact = missing(held, (tile,)) + (self._chain(node, tile) if cut else 0)
        else:
            exact = _partials(self.partial(node, tile), held, volumes(tile) > 0)
        return FoldCost(Moved(seed, exact), copy, PARTIAL if cut and not scan else falls)

    def partial(self, node: ArrayNode, tile: Boxes) -> Boxes:
        """The part of a fold's result that the tile of each worker contributes to."""
        rank, result = tile.shape[1], self.maps.shape(node.outputs[0])
        folded = {axis % rank for axis in node.axes}
        if len(result) == rank:
            found = tile.copy()
            found[:, sorted(folded)] = (0, 1)
        else:
            found = tile[:, [axis for axis in range(rank) if axis not in folded]]
            found = found if result else np.broadcast_to(np.array([0, 1]), (len(tile), 1, 2))
        return only(found, volumes(tile) > 0)

    def _chain(self, node: ArrayNode, tile: Boxes) -> int:
        """Running totals that each chunk along the scanned axis passes to the next."""
        axis = node.axes[0] % tile.shape[1]
        ranges = np.unique(tile[volumes(tile) > 0][:, axis], axis=0)
        shape = self.maps.shape(node.inputs[0])
        lines = self.maps.size(node.inputs[0]) // shape[axis] if shape[axis] else 0
        return max(len(ranges) - 1, 0) * lines


def _partials(parts: Boxes, held: Boxes, filled: Any) -> int:
    """Elements of partial results that belong to other workers."""
    total = 0
    for worker in np.flatnonzero(filled):
        common = volumes(meet(parts[worker][None], held))
        total += int(common.sum() - common[worker])
    return total


def whole_boxes(shape: Shape, workers: int) -> Boxes:
    """All of an array at every worker."""
    boxes = np.zeros((workers, len(padded(shape)), 2), dtype=np.int64)
    boxes[:, :, 1] = padded(shape)
    return boxes


def aligned(axis: int, whole: Shape, shape: Shape) -> int | None:
    """The axis of an input that broadcasting aligns with `axis` of the result; None where it is absent or of size 1."""
    found = axis - (len(padded(whole)) - len(padded(shape)))
    return None if found < 0 or padded(shape)[found] == 1 else found


def projected(boxes: Boxes, whole: Shape, shape: Shape) -> Boxes:
    """What a map reads of an input of `shape` for `boxes` of its result, of shape `whole`."""
    if shape == whole:
        return boxes
    found = whole_boxes(shape, len(boxes))
    for axis in range(boxes.shape[1]):
        place = aligned(axis, whole, shape)
        if place is not None:
            found[:, place] = boxes[:, axis]
    return only(found, volumes(boxes) > 0)


def is_cut(node: ArrayNode, copy: str, rank: int) -> bool:
    """Whether a folded or scanned axis is cut under a label with one map."""
    axes = {axis % max(rank, 1) for axis in node.axes}
    return bool(axes & ({0, 1} if copy == "B" else {int(copy[1:])}))


def falls_out(node: ArrayNode, copy: str, shape: Shape, result: Shape) -> str:
    """The tiling in which a fold of whole lines leaves its result."""
    if copy == "B" or len(result) == len(shape):
        return copy
    if len(result) <= 1:
        return "S0"
    axis = int(copy[1:])
    return f"S{axis - sum(folded % len(shape) < axis for folded in node.axes)}"
