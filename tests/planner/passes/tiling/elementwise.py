"""What a published problem moves, element by element: a worker's share of an array is a mask, views are NumPy's views.

The third count of the same figures, slow and simple; planner and checker are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from treadle.planner.passes.tiling.problem import ArrayNode, TilingProblem

Mask = Any
COPIES = {"D0": ("S0", "S1"), "D1": ("S1", "S0")}


def edges_of(problem: TilingProblem, words: dict[str, str]) -> Iterator[tuple[str, str, int | None, int]]:
    """(array, node, reading, elements) of everything that moves under these tilings."""
    world = _World(problem, words)
    for node in problem.nodes:
        for array, reading, moved in world.moved(node):
            if moved:
                yield array, node.id, reading, moved


def share(shape: tuple[int, ...], word: str, workers: int) -> list[Mask]:
    """The mask of each worker over an array that is no view."""
    if not shape:
        return [np.array(worker == 0) for worker in range(workers)]
    if word == "B":
        rows = max(rows for rows in range(1, workers + 1) if workers % rows == 0 and rows * rows <= workers)
        columns = workers // rows
        one = share(shape, "S0", rows)
        two = share(shape, "S1", columns)
        return [one[worker // columns] & two[worker % columns] for worker in range(workers)]
    axis = int(word[1:])
    size = -(-shape[axis] // workers)
    found = []
    for worker in range(workers):
        mask = np.zeros(shape, bool)
        np.moveaxis(mask, axis, 0)[worker * size : (worker + 1) * size] = True
        found.append(mask)
    return found


class _World:
    def __init__(self, problem: TilingProblem, words: dict[str, str]) -> None:
        self.workers = problem.mesh[0].size
        self.words = words
        self.shapes = {array.id: array.shape for array in problem.arrays}
        self.held: dict[str, list[list[Mask]]] = {}

    def moved(self, node: ArrayNode) -> Iterator[tuple[str, int | None, int]]:
        made, word = node.outputs[0], self.words[node.outputs[0]]
        if node.operator in ("slice", "filter", "swapaxis"):
            self.held[made] = [[_view(node, mask) for mask in copy] for copy in self.held[node.inputs[0]]]
            for number, name in enumerate(node.inputs[1:], 1):
                rows = [[mask.reshape(len(mask), -1).any(1) for mask in copy] for copy in self.held[made]]
                yield name, number, sum(self._lacking(name, each) for each in rows)
            return
        self.held[made] = [share(self.shapes[made], copy, self.workers) for copy in COPIES.get(word, (word,))]
        own = self.held[made][0]
        match node.operator:
            case "map":
                for number, name in enumerate(node.inputs):
                    needs = [_needed(self.shapes[name], self.shapes[made], mask) for mask in own]
                    yield name, number, self._lacking(name, needs)
            case "fold" | "scan":
                name, axes = node.inputs[0], tuple(node.axes)
                fold = node.operator == "fold"
                counts = [
                    self._folded(copy, own, axes) if fold else self._scanned(copy, own, axes[0])
                    for copy in self.held[name]
                ]
                yield made, None, min(counts)
            case "join_update":
                tasks = self._tasks(node)
                for number, (name, axis) in enumerate(zip(node.inputs, node.axes, strict=True)):
                    shape = self.shapes[name]
                    needs = (
                        share(shape, f"S{axis}", self.workers) if axis >= 0 else [np.ones(shape, bool)] * self.workers
                    )
                    yield name, number, self._lacking(name, [mask & tasks[w] for w, mask in enumerate(needs)])
                emitted = [np.full(self.shapes[made], there) for there in tasks]
                if node.update == "each" and max(node.axes) >= 0:
                    emitted = share(self.shapes[made], "S0", self.workers)
                    yield made, None, sum(int((own[w] & ~emitted[w]).sum()) for w in range(self.workers))
                else:
                    yield made, None, _others(emitted, own)
        if word in COPIES:
            yield made, None, sum(int((two & ~one).sum()) for one, two in zip(*self.held[made], strict=True))

    def _lacking(self, name: str, needs: list[Mask]) -> int:
        found = 0
        for worker, need in enumerate(needs):
            has = np.any([copy[worker] for copy in self.held[name]], axis=0)
            found += int((need & ~has).sum())
        return found

    def _folded(self, source: list[Mask], own: list[Mask], axes: tuple[int, ...]) -> int:
        keep = own[0].ndim == source[0].ndim
        return _others([mask.any(axis=axes, keepdims=keep) for mask in source], own)

    def _scanned(self, source: list[Mask], own: list[Mask], axis: int) -> int:
        found = sum(int((need & ~mask).sum()) for mask, need in zip(source, own, strict=True))
        spans = {
            tuple(np.flatnonzero(np.moveaxis(mask, axis, 0).reshape(mask.shape[axis], -1).any(1))) for mask in source
        }
        parts = [span for span in spans if span]
        whole = max(map(len, parts), default=0) == source[0].shape[axis]
        return found if whole else found + (len(parts) - 1) * (source[0].size // source[0].shape[axis])

    def _tasks(self, node: ArrayNode) -> list[bool]:
        if max(node.axes) < 0:
            return [worker == 0 for worker in range(self.workers)]
        found = [True] * self.workers
        for name, axis in zip(node.inputs, node.axes, strict=True):
            if axis >= 0:
                masks = share(self.shapes[name], f"S{axis}", self.workers)
                found = [there and bool(mask.any()) for there, mask in zip(found, masks, strict=True)]
        return found


def _others(parts: list[Mask], own: list[Mask]) -> int:
    """Elements that each worker gets from all others."""
    return sum(int((own[w] & part).sum()) for w in range(len(own)) for v, part in enumerate(parts) if v != w)


def _view(node: ArrayNode, mask: Mask) -> Mask:
    match node.operator:
        case "swapaxis":
            return np.swapaxes(mask, *node.axes)
        case "slice":
            return mask[tuple(slice(*row) for row in node.params["region"])]
    return mask


def _needed(shape: tuple[int, ...], whole: tuple[int, ...], mask: Mask) -> Mask:
    """Which elements of an input of a map broadcast to elements of `mask`."""
    places = np.broadcast_to(np.arange(int(np.prod(shape))).reshape(shape), whole)
    need = np.zeros(int(np.prod(shape)), bool)
    need[places[mask]] = True
    return need.reshape(shape)
