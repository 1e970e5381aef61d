"""The contents of new arrays, region by region: the same values whatever the regions are.

Random numbers are those of the counter-based generator Philox: element i of the array, in C order, has word i of the
stream of its seed (words 2i and 2i + 1 for `normal`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from treadle.planner.errors import InputError

Region = Sequence[tuple[int, int]]
Filled = np.ndarray[Any, Any]
INITS = ("zeros", "ones", "full", "empty", "eye", "arange", "linspace", "uniform", "normal", "integers", "load")
_WORDS = 4
"""Words that one step of the counter gives."""


def filled(shape: Sequence[int], dtype: Any, region: Region | None, params: dict[str, Any]) -> Filled:
    """The part `region` (all of it: None) of a newly made array of `shape`, or of a given one (`value`).

    `params` has `init` and what it needs: `value` of full; `start`, `step`, `stop`, `axis` of arange and linspace; `k`
    of eye; `seed`, `low`, `high`, `mean`, `deviation` of random numbers; `path` of load. A given array has `data`, a
    flat list, or `npy`, a file. Raises InputError for other parameters and for files of another shape.
    """
    part = tuple(region) if region is not None else tuple((0, size) for size in shape)
    kind = np.dtype(dtype)
    sizes = tuple(max(0, stop - start) for start, stop in part)
    try:
        if "data" in params:
            given = np.array(params["data"], dtype=kind).reshape(tuple(shape))
            return given[tuple(slice(*each) for each in part)]
        if "npy" in params or params.get("init") == "load":
            return _loaded(str(params.get("npy", params.get("path"))), tuple(shape), kind, part)
        match params.get("init"):
            case "zeros" | "empty":
                return np.zeros(sizes, kind)
            case "ones":
                return np.ones(sizes, kind)
            case "full":
                return np.full(sizes, _number(params["value"], kind), kind)
            case "eye":
                rows, columns = np.arange(*part[-2])[:, None], np.arange(*part[-1])
                return np.broadcast_to((columns - rows == int(params.get("k", 0))).astype(kind), sizes).copy()
            case "arange" | "linspace":
                axis = int(params.get("axis", 0))
                line = _line(params, kind, shape[axis])[slice(*part[axis])]
                turned = line.reshape([-1 if each == axis else 1 for each in range(len(sizes))])
                return np.broadcast_to(turned, sizes).copy()
            case "uniform" | "normal" | "integers":
                return _drawn(tuple(shape), part, params).astype(kind)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"a new array of shape {list(shape)} cannot be filled: {error!s}") from error
    raise InputError(f"a new array has no init {params.get('init')!r}; it is one of {', '.join(INITS)}")


def _number(given: Any, kind: np.dtype[Any]) -> Any:
    """A number, or its text where JSON has none for it (`nan`, `inf`, complex)."""
    return np.array(given).astype(kind)[()] if isinstance(given, str) else given


def _line(params: dict[str, Any], kind: np.dtype[Any], size: int) -> Filled:
    """NumPy's arange and linspace of `size` elements, to the last bit."""
    wide = np.dtype(complex if kind.kind == "c" else float)
    start = _number(params["start"], wide)
    if params["init"] == "linspace":
        found: Filled = np.linspace(
            start, _number(params["stop"], wide), size, params.get("endpoint", True), dtype=kind
        )
        return found
    step = _number(params["step"], np.dtype(float))
    first, second = np.array(start).astype(kind), np.array(start + step).astype(kind)
    steps = np.arange(size).astype(kind)
    return (first + steps * (second - first)).astype(kind) if size > 1 else np.full(size, first, kind)


def _loaded(path: str, shape: tuple[int, ...], kind: np.dtype[Any], part: Region) -> Filled:
    try:
        stored = np.load(Path(path), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"is no file of an array: {error}", where=path) from error
    if stored.shape != shape or stored.dtype != kind:
        raise InputError(f"has {stored.dtype} {list(stored.shape)}, expected {kind} {list(shape)}", where=path)
    return np.array(stored[tuple(slice(*each) for each in part)])


def _words(seed: int, start: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """`count` words of the stream `seed` from word `start` on."""
    stream = np.random.Philox(key=seed % 2**64, counter=start // _WORDS)
    return stream.random_raw(start % _WORDS + count)[start % _WORDS :]


def _drawn(shape: tuple[int, ...], part: Region, params: dict[str, Any]) -> Filled:
    seed, width = int(params.get("seed", 0)), 2 if params["init"] == "normal" else 1
    sizes = tuple(max(0, stop - start) for start, stop in part)
    words = np.empty((*sizes, width), np.uint64)
    if not words.size:
        return words.reshape(sizes).astype(float)
    whole = len(shape)
    while whole and part[whole - 1] == (0, shape[whole - 1]):
        whole -= 1
    # Axes from `whole` on are not cut: one run of the stream covers them and the cut axis before them.
    cut = max(0, whole - 1)
    row = prod(shape[cut + 1 :]) * width
    for index in np.ndindex(sizes[:cut]):
        before = 0
        for (start, _), size, place in zip(part[:cut], shape[:cut], index, strict=True):
            before = before * size + start + place
        start = (before * shape[cut] + part[cut][0]) * row if shape else 0
        run = words[index] if shape else words
        run[...] = _words(seed, start, run.size).reshape(run.shape)
    return _as_numbers(words, params)


def _as_numbers(words: np.ndarray[Any, np.dtype[np.uint64]], params: dict[str, Any]) -> Filled:
    unit = (words >> np.uint64(11)) * 2.0**-53
    made: Filled
    match params["init"]:
        case "normal":
            # Box and Muller; 1 - unit is never 0.
            radius = np.sqrt(-2 * np.log1p(-unit[..., 0]))
            drawn = radius * np.cos(2 * np.pi * unit[..., 1])
            made = drawn * params.get("deviation", 1.0) + params.get("mean", 0.0)
        case "integers":
            least, above = int(params["low"]), int(params["high"])
            made = np.floor(unit[..., 0] * (above - least)).astype(np.int64) + least
        case _:
            low, high = float(params.get("low", 0.0)), float(params.get("high", 1.0))
            made = low + unit[..., 0] * (high - low)
    return made
