"""Which part of an array each of p workers holds: tile maps, as boxes of half-open ranges [worker, axis, (from, to)].

`S0`, `S1`, ... cut one axis into p chunks of ceil(n / p), of which the last may be empty. `B` cuts axes 0 and 1 over a
grid of r x c workers, r the largest divisor of p with r * r <= p. `D0` has the map of `S0` and a second copy with that
of `S1`, `D1` the other order. An array of rank 0 is at worker 0, as one of one element. Views have no map of their own:
they are where their source is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from math import isqrt, prod
from typing import Any

import numpy as np

from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.problem import ArrayNode, TiledArray, TilingProblem

Boxes = np.ndarray[Any, np.dtype[np.int64]]
"""[worker, axis, 2]; a box with an empty range is empty."""
Shape = tuple[int, ...]
VIEWS = ("filter", "slice", "swapaxis")
COPIES = {"D0": ("S0", "S1"), "D1": ("S1", "S0")}
"""The maps of both copies, the first made first."""


def copies(label: str) -> tuple[str, ...]:
    """The labels with one map that `label` consists of."""
    return COPIES.get(label, (label,))


def first_map(label: str) -> str:
    """The label of the copy that is made first."""
    return copies(label)[0]


def padded(shape: Shape) -> Shape:
    """An array of rank 0 lies as one of one element."""
    return shape or (1,)


def grid(workers: int) -> tuple[int, int]:
    """Rows and columns of workers that cut a matrix into blocks."""
    rows = next(rows for rows in range(isqrt(workers), 0, -1) if workers % rows == 0)
    return rows, workers // rows


def chunks(extent: int, parts: int) -> Boxes:
    """Ranges [part, 2] of ceil(extent / parts)."""
    edges = np.minimum(np.arange(parts + 1, dtype=np.int64) * -(-extent // parts), extent)
    return np.stack([edges[:-1], edges[1:]], axis=1)


@lru_cache(maxsize=4096)
def tiles(shape: Shape, label: str, workers: int) -> Boxes:
    """The map of an array under a label with one map. Do not write to the result."""
    shape = padded(shape)
    boxes = np.zeros((workers, len(shape), 2), dtype=np.int64)
    boxes[:, :, 1] = shape
    if label == "B":
        rows, columns = grid(workers)
        boxes[:, 0] = np.repeat(chunks(shape[0], rows), columns, axis=0)
        boxes[:, 1] = np.tile(chunks(shape[1], columns), (rows, 1))
    else:
        axis = int(label[1:])
        boxes[:, axis] = chunks(shape[axis], workers)
    return boxes


def volumes(boxes: Boxes) -> Boxes:
    """Elements of each box."""
    found: Boxes = np.maximum(boxes[..., 1] - boxes[..., 0], 0).prod(axis=-1)
    return found


def meet(one: Boxes, other: Boxes) -> Boxes:
    """The common part of boxes."""
    return np.stack([np.maximum(one[..., 0], other[..., 0]), np.minimum(one[..., 1], other[..., 1])], axis=-1)


def only(boxes: Boxes, which: Any) -> Boxes:
    """The boxes with those empty that are not in the mask `which`."""
    return np.where(np.asarray(which)[:, None, None], boxes, 0)


def missing(needed: Boxes, held: Sequence[Boxes]) -> int:
    """Elements that workers need and have in none of one or two copies."""
    count = volumes(needed).sum()
    for copy in held:
        count -= volumes(meet(needed, copy)).sum()
    if len(held) == 2:
        count += volumes(meet(meet(needed, held[0]), held[1])).sum()
    return int(count)


class TileMaps:
    """The maps of the arrays of a published problem, resolved through views."""

    def __init__(self, problem: TilingProblem) -> None:
        self.problem = problem
        self.workers = problem.mesh[0].size
        self._held: dict[tuple[int, str], tuple[Boxes, ...]] = {}
        self._kinds: dict[object, int] = {}
        self._kind: dict[str, int] = {}

    @cached_property
    def arrays(self) -> dict[str, TiledArray]:
        return {array.id: array for array in self.problem.arrays}

    @cached_property
    def makers(self) -> dict[str, ArrayNode]:
        return {name: node for node in self.problem.nodes for name in node.outputs}

    def shape(self, name: str) -> Shape:
        return self.arrays[name].shape

    def size(self, name: str) -> int:
        """Elements of the array."""
        return prod(self.shape(name))

    def bytes(self, name: str) -> int:
        return self.size(name) * self.arrays[name].item_bytes

    def is_view(self, name: str) -> bool:
        return self.makers[name].operator in VIEWS

    def source_label(self, view: str, label: str) -> str | None:
        """The tiling of its source under which a view has `label`; None if it has no name."""
        node = self.makers[view]
        if node.operator != "swapaxis":
            return label
        rank = len(self.shape(view))
        return mirrored(label, (node.axes[0] % rank, node.axes[1] % rank))

    def has_place(self, name: str, label: str) -> bool:
        """Whether an array may have `label` as far as its sources are concerned: a view only what has a name there."""
        found: str | None = label
        while found is not None and self.is_view(name):
            name, found = self.makers[name].inputs[0], self.source_label(name, found)
        return found is not None

    def held(self, name: str, label: str) -> tuple[Boxes, ...]:
        """What workers hold of an array under `label`: one map, or those of both copies."""
        key = (self.kind(name), label)
        if key not in self._held:
            self._held[key] = self._resolved(name, label)
        return self._held[key]

    def kind(self, name: str) -> int:
        """A number that arrays share if they have the same maps: loops repeat shapes and views of them."""
        if name not in self._kind:
            node = self.makers[name]
            key: tuple[object, ...] = (self.shape(name),)
            if node.operator in VIEWS:
                view = (node.operator, node.axes, str(node.params.get("region")), self.kind(node.inputs[0]))
                key = (*key, *view)
            self._kind[name] = self._kinds.setdefault(key, len(self._kinds))
        return self._kind[name]

    def first(self, name: str, label: str) -> Boxes:
        """What workers hold in the first copy."""
        return self.held(name, label)[0]

    def _resolved(self, name: str, label: str) -> tuple[Boxes, ...]:
        node = self.makers[name]
        if node.operator not in VIEWS:
            return tuple(tiles(self.shape(name), copy, self.workers) for copy in copies(label))
        source = self.source_label(name, label)
        assert source is not None
        return tuple(seen(node, boxes, self.shape(name)) for boxes in self.held(node.inputs[0], source))


def mirrored(label: str, axes: tuple[int, int]) -> str | None:
    """The tiling that an array has under `label` after its two `axes` are swapped; None where it has no name."""
    both, neither = set(axes) == {0, 1}, not {0, 1} & set(axes)
    if label.startswith("S"):
        axis = int(label[1:])
        return f"S{axes[1] if axis == axes[0] else axes[0] if axis == axes[1] else axis}"
    if axes[0] == axes[1] or neither:
        return label
    if not both:
        return None
    return {"D0": "D1", "D1": "D0"}.get(label, label)


def seen(node: ArrayNode, boxes: Boxes, shape: Shape) -> Boxes:
    """The boxes of a source in coordinates of its view, of that `shape`. Raises InputError for an unsound region."""
    if node.operator == "swapaxis":
        one, other = (axis % boxes.shape[1] for axis in node.axes)
        order = list(range(boxes.shape[1]))
        order[one], order[other] = order[other], order[one]
        return boxes[:, order]
    limits = np.array(padded(shape), dtype=np.int64)[None, :, None]
    if node.operator == "filter":
        return np.minimum(boxes, limits)
    starts, _, steps = (np.array(each, dtype=np.int64)[None, :, None] for each in region(node, boxes.shape[1]))
    found: Boxes = np.clip(-((starts - boxes) // steps), 0, limits)
    return found


def region(node: ArrayNode, rank: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """First index, end and step of a slice along each axis. Raises InputError for a region that is none."""
    rows = node.params.get("region")
    if not isinstance(rows, list | tuple) or len(rows) != rank or not all(map(_range, rows)) or node.params.get("drop"):
        raise InputError("found no region of [start, stop, step] for each axis", where=f"{node.operator} {node.id}")
    return tuple(row[0] for row in rows), tuple(row[1] for row in rows), tuple(row[2] for row in rows)


def _range(row: Any) -> bool:
    if not isinstance(row, list | tuple) or len(row) != 3 or not all(type(number) is int for number in row):
        return False
    return bool(0 <= row[0] <= row[1] and row[2] >= 1)
