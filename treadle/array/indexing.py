"""Parts of arrays: views of regions, rows where a mask is true, elements at given places."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.array.lazy import Array, Operand
from treadle.array.lowering import axis_of, created, filtered, folded, given, joined, known_shape, selected, sliced
from treadle.array.manipulation import along, broadcast_shapes, broadcast_to, expand_dims, flip, moveaxis, reshape
from treadle.array.node import problem_of
from treadle.array.settings import CAPTURING

Key = None | int | range | Array
"""What indexes one axis: nothing (a new axis), a number, places in a line, an array of places."""


def item_of(x: Array, key: Any) -> Array:
    """`x[key]`, as NumPy has it."""
    x, mask = given(x), mask_of(key)
    if mask is not None:
        return _masked(x, mask)
    shape = known_shape(x, "an index")
    keys = keys_of(key, shape)
    if x.node.value is not None and not CAPTURING.get() and all(isinstance(each, int) for each in keys):
        return given(x.node.value[tuple(keys)])  # one element of what is there already: no graph for it
    x, gathered = _basic(x, shape, keys)
    return _gathered(x, gathered) if gathered else x


def mask_of(key: Any) -> Array | None:
    """`key` where it is a mask."""
    key = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if isinstance(key, (bool, np.bool_, list, np.ndarray)):
        key = given(np.asarray(key)) if np.asarray(key).dtype == np.bool_ else key
    return key if isinstance(key, Array) and key.dtype == np.bool_ else None


def keys_of(key: Any, shape: tuple[int, ...]) -> list[Key]:
    """A key for each axis of an array of `shape`, and None for new ones. Raises IndexError as NumPy does."""
    keys = [part for each in (key if isinstance(key, tuple) else (key,)) for part in _places(each)]
    sizes = iter(enumerate(shape))
    found = [None if each is None else _key_of(each, *next(sizes)) for each in _whole(keys, len(shape))]
    if any(isinstance(each, Array) for each in found):
        # Next to arrays of places NumPy takes numbers as such arrays.
        found = [given(np.asarray(each)) if isinstance(each, int) else each for each in found]
    return found


def _masked(x: Array, mask: Array) -> Array:
    if chooses_nothing(mask.shape, x.shape):
        return created((0, *x.shape[mask.ndim :]), x.dtype, {"init": "zeros"})
    if mask.ndim == 1 and x.ndim:
        return filtered(x, mask)
    if mask.ndim == 0:
        return filtered(expand_dims(x, 0), expand_dims(mask, 0))
    if mask.shape != x.shape[: mask.ndim]:
        raise problem_of(f"a mask of shape {mask.shape} on an array of shape {x.shape}")
    bound = (mask.size, *x.shape[mask.ndim :])
    return selected("select", x, mask, bound=bound, dtype=x.dtype)


def chooses_nothing(mask: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a mask of that shape has no elements; it then need not have the sizes of the array."""
    return (
        0 in mask
        and len(mask) <= len(shape)
        and all(each in (0, have) for each, have in zip(mask, shape, strict=False))
    )


def _places(key: Any) -> list[Any]:
    """A key for each axis: masks as the places where they are true, arrays without axes as numbers."""
    if isinstance(key, bool):
        raise problem_of("an index by True or False next to others; use a mask of the shape of the array")
    key = given(np.asarray(key)) if isinstance(key, (list, np.ndarray, np.bool_)) else key
    if not isinstance(key, Array):
        return [key]
    if key.dtype == np.bool_:
        return [given(each) for each in np.nonzero(key.numpy())]
    if key.dtype.kind not in "iu":
        raise IndexError(f"an index of dtype {key.dtype}")
    return [int(key)] if key.ndim == 0 else [key]


def _whole(keys: list[Any], rank: int) -> list[Any]:
    """The keys with slices for the axes that they leave out."""
    used = sum(1 for each in keys if each is not None and each is not Ellipsis)
    if used > rank:
        raise IndexError(f"{used} indices for an array with {rank} axes")
    rest = [slice(None)] * (rank - used)
    dots = [place for place, each in enumerate(keys) if each is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index has one ... at most")
    return [*keys[: dots[0]], *rest, *keys[dots[0] + 1 :]] if dots else [*keys, *rest]


def _key_of(key: Any, axis: int, size: int) -> Key:
    if isinstance(key, slice):
        return range(*key.indices(size))
    if isinstance(key, Array):
        return key
    if not hasattr(key, "__index__"):
        raise IndexError(f"an index of type {type(key).__name__}")
    place = int(key.__index__())
    if not -size <= place < size:
        raise IndexError(f"index {place} of axis {axis} with size {size}")
    return place % size


def _basic(x: Array, shape: tuple[int, ...], keys: list[Key]) -> tuple[Array, list[tuple[int, Array]]]:
    """What numbers, lines and None do; with the arrays of places that are left, and the axes that they index."""
    of_axes = [key for key in keys if key is not None]
    region = [_part(key, size) for key, size in zip(of_axes, shape, strict=True)]
    turned = [axis for axis, key in enumerate(of_axes) if isinstance(key, range) and key.step < 0]
    dropped = [axis for axis, key in enumerate(of_axes) if isinstance(key, int)]
    x = flip(sliced(x, region), turned) if turned else sliced(x, region)
    x = folded("only", x, dropped, dtype=x.dtype) if dropped else x
    kept = [key for key in keys if not isinstance(key, int)]
    new = [place for place, key in enumerate(kept) if key is None]
    x = expand_dims(x, new) if new else x
    return x, [(place, key) for place, key in enumerate(kept) if isinstance(key, Array)]


def _part(key: Key, size: int) -> tuple[int, int, int]:
    """The region of a slice for `key`; that of an array of places is all."""
    if isinstance(key, int):
        return key, key + 1, 1
    if not isinstance(key, range):
        return 0, size, 1
    line = key[::-1] if key.step < 0 else key
    return line.start, max(line.start, line[-1] + 1) if line else line.start, line.step


def _gathered(x: Array, places: list[tuple[int, Array]]) -> Array:
    axes = [axis for axis, _ in places]
    if len(places) == 1 and places[0][1].ndim == 1:
        return take(x, places[0][1], axis=axes[0])
    try:
        shape = np.broadcast_shapes(*(each.shape for _, each in places))
    except ValueError:
        raise IndexError("arrays of places do not broadcast") from None
    rest = [size for axis, size in enumerate(x.shape) if axis not in axes]
    cut = [0 if each.shape == shape and shape else -1 for _, each in places]
    inputs = [x, *(each for _, each in places)]
    if -1 in cut:
        cut = [-1] * len(cut)
    made = joined("gather", inputs, (-1, *cut), (*shape, *rest), x.dtype, indexed=axes)
    if axes == list(range(axes[0], axes[0] + len(axes))):
        return moveaxis(made, tuple(range(len(shape))), tuple(range(axes[0], axes[0] + len(shape))))
    return made


def take(x: Operand, indices: Operand, /, *, axis: int | None = None) -> Array:
    """The parts of `x` at `indices` along `axis`."""
    x, indices = given(x), given(indices)
    if indices.dtype.kind not in "iu":
        raise problem_of(f"take with indices of dtype {indices.dtype}")
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = axis_of(axis, x.ndim)
    if indices.ndim != 1:
        return item_of(x, (*([slice(None)] * axis), indices))
    shape, count = known_shape(x, "take"), known_shape(indices, "take")[0]
    made = (*shape[:axis], count, *shape[axis + 1 :])
    if axis == 0:
        return joined("take", (x, indices), (-1, 0), made, x.dtype, axis=0)
    return joined("take", (x, indices), (0, -1), made, x.dtype, axis=axis)


def take_along_axis(x: Operand, indices: Operand, /, *, axis: int = -1) -> Array:
    x, indices = given(x), given(indices)
    axis = axis_of(axis, x.ndim)
    have, wanted = known_shape(x, "take_along_axis"), known_shape(indices, "take_along_axis")
    if len(have) != len(wanted):
        raise problem_of(f"take_along_axis of shape {have} with indices of shape {wanted}")
    rest = broadcast_shapes((*have[:axis], 1, *have[axis + 1 :]), (*wanted[:axis], 1, *wanted[axis + 1 :]))
    x, indices = (broadcast_to(each, (*rest[:axis], each.shape[axis], *rest[axis + 1 :])) for each in (x, indices))
    return along("take_along_axis", (x, indices), axis, indices.shape[axis], x.dtype)


def compress(mask: Operand, x: Operand, /, axis: int = 0) -> Array:
    """The parts of `x` along `axis` where `mask` is true: a filter along axis 0, else behind a view."""
    x = given(x)
    axis = axis_of(axis, x.ndim)
    return filtered(x, mask) if axis == 0 else moveaxis(filtered(moveaxis(x, axis, 0), mask), 0, axis)
