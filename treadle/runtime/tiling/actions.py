"""What a worker computes of an operator on its tiles, by the name that a phase gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.problem import ArrayNode, TiledArray
from treadle.runtime.tiling.filled import filled
from treadle.runtime.tiling.functions import called, combine_of
from treadle.runtime.tiling.tasks import Array, Tile, TilePhase
from treadle.runtime.tiling.tiles import Region, inside, shape_of, whole


@dataclass(frozen=True)
class Actions:
    """`values` are arrays that the caller gives, by id."""

    values: Mapping[str, Array] = field(default_factory=dict)

    def act(self, phase: TilePhase, region: Region, tiles: list[Tile]) -> Tile:
        """The tile `region` of what `phase` makes."""
        if phase.action == "value" and (given := self.values.get(_array(phase).id)) is not None:
            return Tile(region, np.array(given[inside(region, whole(given.shape))]))
        return ACTIONS[phase.action](phase, region, tiles)


def _node(phase: TilePhase) -> ArrayNode:
    assert phase.node is not None
    return phase.node


def _array(phase: TilePhase) -> TiledArray:
    array = phase.extra[0]
    assert isinstance(array, TiledArray)
    return array


def _new(phase: TilePhase, region: Region, tiles: list[Tile]) -> Tile:
    array = _array(phase)
    return Tile(region, filled(array.shape, array.dtype, region, _node(phase).params))


def _gather(phase: TilePhase, region: Region, tiles: list[Tile]) -> Tile:
    return tiles[0].part(region)


def _apply(phase: TilePhase, region: Region, tiles: list[Tile]) -> Tile:
    """A function on whole tiles."""
    data = called(_node(phase), [tile.data for tile in tiles], _array(phase).dtype)
    return _shaped(phase, region, data, _kept(_node(phase), tiles, region))


def _shaped(phase: TilePhase, region: Region, data: Array, valid: Array | None = None) -> Tile:
    if data.shape != shape_of(region):
        name, found, expected = _node(phase).function, list(data.shape), list(shape_of(region))
        raise InputError(f"{name} has made a tile of shape {found}, expected {expected}")
    return Tile(region, data, valid)


def _kept(node: ArrayNode, tiles: list[Tile], region: Region) -> Array | None:
    """Which rows of the result a filter has kept: inputs of the result's rank must agree."""
    found = [tile.valid for tile in tiles if tile.valid is not None and len(tile.region) == len(region)]
    if any(not np.array_equal(each, found[0]) for each in found[1:]):
        raise InputError(f"{node.id}: its inputs are filtered by different masks; evaluate one of them first")
    return found[0] if found else None


def _fold(phase: TilePhase, region: Region, tiles: list[Tile]) -> Tile:
    """A tile folded. One of which a filter has left no row has no part in a result that nothing makes nothing of."""
    node, (tile,) = _node(phase), tiles
    data, valid = tile.data, tile.valid
    if valid is not None and 0 in {axis % data.ndim for axis in node.axes}:
        data, valid = data[valid], None
    try:
        made = called(node, [data], _array(phase).dtype)
    except ValueError:
        if len(data) or tile.valid is None:
            raise
        return Tile(region, np.zeros(shape_of(region), _array(phase).dtype), absent=True)
    return _shaped(phase, region, made, valid)


def _of_nothing(phase: TilePhase, region: Region, tiles: list[Tile]) -> Tile:
    """What a function makes of inputs without elements, such as a sum of no rows, or NumPy's error."""
    array, shapes = phase.extra
    made = called(_node(phase), [np.empty(shape, dtype) for shape, dtype in shapes], array.dtype)
    return Tile(region, np.asarray(made[inside(region, whole(array.shape))]))


def _scan(phase: TilePhase, region: Region, tiles: list[Tile]) -> Tile:
    (tile,) = tiles
    return _shaped(phase, region, called(_node(phase), [tile.data], _array(phase).dtype), tile.valid)


def _chain(phase: TilePhase, region: Region, tiles: list[Tile]) -> Tile:
    """A local scan continued from the last line of the tile before it, if any."""
    local, *before = tiles
    if not before:
        return local
    combine = combine_of(_node(phase))
    if combine is None:
        raise InputError(f"{_node(phase).function} cannot be continued from tile to tile")
    return Tile(region, combine(before[0].data, local.data).astype(local.data.dtype, copy=False), local.valid)


def _slice(phase: TilePhase, region: Region, tiles: list[Tile]) -> Tile:
    """The part of a tile that a slice sees, without a copy."""
    steps, (tile,) = phase.extra[0], tiles
    return Tile(region, tile.data[steps], None if tile.valid is None else tile.valid[steps[0]])


def _swap(phase: TilePhase, region: Region, tiles: list[Tile]) -> Tile:
    (tile,), (one, other) = tiles, _node(phase).axes
    if tile.valid is not None and 0 in (one % tile.data.ndim, other % tile.data.ndim):
        raise InputError(f"{_node(phase).id}: the rows of a filtered array cannot change places; evaluate it first")
    return Tile(region, np.swapaxes(tile.data, one, other), tile.valid)


def _filter(phase: TilePhase, region: Region, tiles: list[Tile]) -> Tile:
    """A view: all rows stay, and those that the mask drops count as absent."""
    tile, mask = tiles
    return Tile(region, tile.data, mask.data if tile.valid is None else mask.data & tile.valid)


ACTIONS: dict[str, Callable[[TilePhase, Region, list[Tile]], Tile]] = {
    "newarray": _new,
    "value": _new,
    "gather": _gather,
    "map": _apply,
    "fold": _fold,
    "of-nothing": _of_nothing,
    "scan": _scan,
    "chain": _chain,
    "join_update": _apply,
    "slice": _slice,
    "swapaxis": _swap,
    "filter": _filter,
}
