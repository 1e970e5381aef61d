"""Which part of an array each worker holds.

A region is a (first, behind the last) index for each axis. A tile map has a region for each worker, None where it holds
nothing. This is written apart from the planner's maps, so that counts of what runs check the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isqrt, prod

from treadle.planner.passes.tiling.problem import ArrayTiling

Region = tuple[tuple[int, int], ...]
TileMap = tuple[Region | None, ...]


def whole(shape: Sequence[int]) -> Region:
    """All of an array."""
    return tuple((0, n) for n in shape)


def size(region: Region) -> int:
    """Elements of a region."""
    return prod(high - low for low, high in region)


def shape_of(region: Region) -> tuple[int, ...]:
    return tuple(high - low for low, high in region)


def meet(one: Region | None, other: Region | None) -> Region | None:
    """What both have, None where that is nothing."""
    if one is None or other is None:
        return None
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(low < high for low, high in both) else None


def without(region: Region, hole: Region) -> Iterator[Region]:
    """`region` without `hole`, as regions that do not overlap."""
    common = meet(region, hole)
    if common is None:
        yield region
        return
    for axis, ((low, high), (first, end)) in enumerate(zip(region, common, strict=True)):
        before, behind = common[:axis], region[axis + 1 :]
        for part in ((low, first), (end, high)):
            if part[0] < part[1]:
                yield (*before, part, *behind)


def inside(region: Region, outer: Region) -> tuple[slice, ...]:
    """Where `region` lies in an array that holds `outer`."""
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(region, outer, strict=True))


def chunk(n: int, parts: int, number: int) -> tuple[int, int]:
    """One of `parts` chunks of ceil(n / parts) indices; the last ones may be shorter or empty."""
    length = -(-n // parts)
    return min(n, number * length), min(n, (number + 1) * length)


def grid(workers: int) -> tuple[int, int]:
    """Rows and columns of workers of a block tiling: as near to a square as the number allows."""
    rows = next(rows for rows in range(isqrt(workers), 0, -1) if workers % rows == 0)
    return rows, workers // rows


def coordinates(worker: int, mesh: Sequence[int]) -> tuple[int, ...]:
    """The place of a worker in the mesh; the last axis varies fastest."""
    place = []
    for length in reversed(mesh):
        worker, at = divmod(worker, length)
        place.append(at)
    return tuple(reversed(place))


def group(worker: int, axis: int, mesh: Sequence[int]) -> tuple[int, ...]:
    """The workers that differ from this one along `axis` only, itself among them."""
    stride = prod(mesh[axis + 1 :])
    first = worker - coordinates(worker, mesh)[axis] * stride
    return tuple(range(first, first + stride * mesh[axis], stride))


def tile_maps(shape: Sequence[int], tiling: ArrayTiling, mesh: Sequence[int]) -> tuple[TileMap, ...]:
    """The map of each copy of an array: two for D0 and D1, else one.

    On one axis a scalar that is cut lies on worker 0, as in the paper; R and P have the whole on each worker.
    """
    if tiling in (("D0",), ("D1",)):
        orders = (("S0",), ("S1",)) if tiling == ("D0",) else (("S1",), ("S0",))
        return tuple(_tile_map(shape, order, mesh) for order in orders)
    return (_tile_map(shape, tiling, mesh),)


def _tile_map(shape: Sequence[int], tiling: ArrayTiling, mesh: Sequence[int]) -> TileMap:
    return tuple(_tile(shape, tiling, mesh, worker) for worker in range(prod(mesh)))


def _tile(shape: Sequence[int], tiling: ArrayTiling, mesh: Sequence[int], worker: int) -> Region | None:
    region = list(whole(shape))
    for placement, length, at in zip(tiling, mesh, coordinates(worker, mesh), strict=True):
        if placement == "B":
            rows, columns = grid(length)
            cuts = [(0, rows, at // columns), (1, columns, at % columns)]
        elif placement.startswith("S"):
            cuts = [(int(placement[1:]), length, at)]
        else:
            continue
        for axis, parts, number in cuts:
            if not region and number:
                return None
            if region:
                low, high = region[axis]
                first, end = chunk(high - low, parts, number)
                region[axis] = low + first, low + end
    return tuple(region) if all(low < high for low, high in region) else None
