"""`x[key] = value` without writing: a map that takes `value` at the places of `key` and `x` elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.array.creation import arange, places
from treadle.array.elementwise import clip, logical_and, where
from treadle.array.indexing import Key, chooses_nothing, keys_of, mask_of, take
from treadle.array.lazy import Array, Operand
from treadle.array.lowering import given, joined, known_shape
from treadle.array.manipulation import broadcast_to, expand_dims, reshape
from treadle.array.node import problem_of
from treadle.array.reductions import cumsum


def with_item(x: Array, key: Any, value: Operand) -> Array:
    """`x` with `value` at `key`, which is a mask, numbers and slices, or arrays of places."""
    value = _fitting(x, value)
    mask = mask_of(key)
    if mask is not None:
        return _at_mask(x, mask, value)
    shape = known_shape(x, "an assignment")
    keys = keys_of(key, shape)
    arrays = {axis: each for axis, each in enumerate(keys) if isinstance(each, Array)}
    if not arrays:
        return _at_region(x, shape, keys, value)
    if any(axis not in arrays and each != range(shape[axis]) for axis, each in enumerate(keys)):
        raise problem_of("an assignment to arrays of places together with parts of other axes")
    inputs = (x, value, *arrays.values())
    return joined("put", inputs, (-1,) * len(inputs), shape, x.dtype, indexed=list(arrays))


def _fitting(x: Array, value: Operand) -> Array:
    """`value` in the dtype of `x`."""
    if isinstance(value, (bool, int, float, complex)):
        kind = np.result_type(x.dtype, value)
    else:
        value = given(value)
        kind = value.dtype
    if not np.can_cast(kind, x.dtype, "same_kind"):
        raise problem_of(f"an assignment of {kind} to an array of {x.dtype}")
    if isinstance(value, Array):
        return value.astype(x.dtype)
    try:
        return given(np.array(value, x.dtype))
    except OverflowError as error:
        raise problem_of(f"an assignment: {error}") from error


def _at_mask(x: Array, mask: Array, value: Array) -> Array:
    shape, rest = known_shape(x, "a mask"), x.ndim - mask.ndim
    if chooses_nothing(mask.shape, shape):
        return Array(x.node)
    if mask.shape != shape[: mask.ndim]:
        raise problem_of(f"a mask of shape {mask.shape} on an array of shape {shape}")
    if value.ndim > rest and value.shape[0] != 1:
        # One part for each true element: the number of those before it says which.
        before = clip(cumsum(reshape(mask, (-1,)), dtype=np.int64) - 1, 0, value.shape[0] - 1)
        value = reshape(take(value, before, axis=0), (*mask.shape, *value.shape[1:]))
    chosen = expand_dims(mask, tuple(range(mask.ndim, x.ndim))) if rest else mask
    return where(chosen, value, x)


def _at_region(x: Array, shape: tuple[int, ...], keys: list[Key], value: Array) -> Array:
    value = _aligned(value, keys)
    chosen: Array | None = None
    for axis, key in enumerate(each for each in keys if each is not None):
        size = shape[axis]
        line = key if isinstance(key, range) else range(key, key + 1)
        if not line:
            return Array(x.node)
        if value.shape[axis] > 1 and line != range(size):
            place = clip((arange(size, dtype=np.int64) - line.start) // line.step, 0, len(line) - 1)
            value = take(value, place, axis=axis)
        if line != range(size):
            inside = _inside(places(shape, axis), line)
            chosen = inside if chosen is None else logical_and(chosen, inside)
    return broadcast_to(value, shape) if chosen is None else where(chosen, value, x)


def _aligned(value: Array, keys: list[Key]) -> Array:
    """`value` with the axes of the array. It must broadcast to the part of `keys`, whose axes of None go; those that a
    number indexes come, of one element."""
    sizes = [1 if key is None else len(key) for key in keys if not isinstance(key, (int, Array))]
    have = known_shape(value, "an assignment")
    extra = max(0, len(have) - len(sizes))
    padded = iter((1,) * (len(sizes) - len(have)) + have[extra:])
    if set(have[:extra]) - {1}:
        raise problem_of(f"an assignment of shape {have} to a part of shape {tuple(sizes)}")
    wanted = []
    for key in keys:
        if isinstance(key, int):
            wanted.append(1)
            continue
        size = next(padded)
        if size not in (1, 1 if key is None else len(key)):
            raise problem_of(f"an assignment of shape {have} to a part of shape {tuple(sizes)}")
        wanted += [] if key is None else [size]
    return reshape(value, tuple(wanted))


def _inside(at: Array, line: range) -> Any:
    """Which of the places `at` are in `line`."""
    line = line if line.step > 0 else line[::-1]
    if len(line) == 1:
        return at == line.start
    within = logical_and(at >= line.start, at <= line[-1])
    return within if line.step == 1 else logical_and(within, (at - line.start) % line.step == 0)
