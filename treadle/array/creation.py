"""New arrays, and arrays of given values or from files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from treadle.array.dtypes import result_type
from treadle.array.lazy import Array, Operand
from treadle.array.lowering import created, given, known_shape
from treadle.array.node import problem_of

Shape = int | Sequence[int]
Maker = Callable[..., Array]


def on_cpu(make: Maker) -> Maker:
    """`make` with the argument `device` of the standard, which is "cpu"."""

    @wraps(make)
    def made(*args: Any, device: str | None = None, **options: Any) -> Array:
        if device not in (None, "cpu"):
            raise problem_of(f"arrays are on the device cpu, not {device!r}")
        return make(*args, **options)

    known = signature(make)
    on = Parameter("device", Parameter.KEYWORD_ONLY, default=None)
    setattr(made, "__signature__", known.replace(parameters=(*known.parameters.values(), on)))  # noqa: B010
    return made


@on_cpu
def asarray(values: Any, /, *, dtype: Any = None, copy: bool | None = None) -> Array:
    """A lazy array of `values`: numbers, nested lists, an array of NumPy."""
    if isinstance(values, Array):
        if dtype is not None and values.dtype != dtype:
            return values.astype(dtype)
        return Array(values.node) if copy else values
    if copy is False:
        raise problem_of("asarray copies: arrays share no memory with others")
    if isinstance(values, (list, tuple)):
        values = _numbers(values)
    return given(np.array(values, dtype=dtype))


def _numbers(values: Any) -> Any:
    """Nested lists with the values of lazy arrays in their place."""
    if isinstance(values, (list, tuple)):
        return [_numbers(each) for each in values]
    return values.numpy() if isinstance(values, Array) else values


def from_dlpack(values: Any, /, *, device: str | None = None, copy: bool | None = None) -> Array:
    """A lazy array of what another library holds in memory; always a copy."""
    if copy is False and not isinstance(values, Array):
        raise problem_of("from_dlpack copies: arrays share no memory with others")
    return asarray(values if isinstance(values, Array) else np.from_dlpack(values), device=device)


array = asarray


@on_cpu
def zeros(shape: Shape, *, dtype: Any = float) -> Array:
    return created(shape, dtype, {"init": "zeros"})


@on_cpu
def ones(shape: Shape, *, dtype: Any = float) -> Array:
    return created(shape, dtype, {"init": "ones"})


@on_cpu
def empty(shape: Shape, *, dtype: Any = float) -> Array:
    return created(shape, dtype, {"init": "empty"})


@on_cpu
def full(shape: Shape, fill_value: Any, *, dtype: Any = None) -> Array:
    fill_value = fill_value.item() if isinstance(fill_value, (Array, np.ndarray, np.generic)) else fill_value
    return created(
        shape, np.result_type(fill_value) if dtype is None else dtype, {"init": "full", "value": text_of(fill_value)}
    )


@on_cpu
def zeros_like(x: Array, /, *, dtype: Any = None) -> Array:
    return zeros(known_shape(x, "zeros_like"), dtype=x.dtype if dtype is None else dtype)


@on_cpu
def ones_like(x: Array, /, *, dtype: Any = None) -> Array:
    return ones(known_shape(x, "ones_like"), dtype=x.dtype if dtype is None else dtype)


@on_cpu
def empty_like(x: Array, /, *, dtype: Any = None) -> Array:
    return empty(known_shape(x, "empty_like"), dtype=x.dtype if dtype is None else dtype)


@on_cpu
def full_like(x: Array, /, fill_value: Any, *, dtype: Any = None) -> Array:
    return full(known_shape(x, "full_like"), fill_value, dtype=x.dtype if dtype is None else dtype)


@on_cpu
def eye(rows: int, columns: int | None = None, /, *, k: int = 0, dtype: Any = float) -> Array:
    return created((rows, rows if columns is None else columns), dtype, {"init": "eye", "k": k})


@on_cpu
def arange(start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None) -> Array:
    """As NumPy's: `start`, `start + step`, ..., before `stop`."""
    start, stop = (0, start) if stop is None else (start, stop)
    kind = np.dtype(dtype) if dtype is not None else result_type(np.arange(0, type(step)(1)).dtype, start, stop, step)
    if step == 0:
        raise problem_of("arange needs a step that is not 0")
    return created((max(0, ceil((stop - start) / step)),), kind, {"init": "arange", "start": start, "step": step})


@on_cpu
def linspace(start: float, stop: float, /, num: int, *, dtype: Any = None, endpoint: bool = True) -> Array:
    kind = np.dtype(dtype) if dtype is not None else np.result_type(start, stop, float)
    params = {"init": "linspace", "start": text_of(start), "stop": text_of(stop), "endpoint": bool(endpoint)}
    return created((num,), kind, params)


def places(shape: Sequence[int], axis: int) -> Array:
    """The places along `axis`, 0, 1, ..., as int64: the size of that axis, 1 along the others."""
    sizes = [size if each == axis else 1 for each, size in enumerate(shape)]
    return created(sizes, np.int64, {"init": "arange", "start": 0, "step": 1, "axis": axis})


def load(path: str | Path) -> Array:
    """The array of the `.npy` file `path`, read when it is needed, each part where it is needed."""
    stored = np.load(path, mmap_mode="r", allow_pickle=False)
    return created(stored.shape, stored.dtype, {"init": "load", "path": str(path)})


def uniform(shape: Shape, *, low: float = 0.0, high: float = 1.0, seed: int = 0, dtype: Any = float) -> Array:
    """Random numbers in [low, high), the same for a seed however the array is cut."""
    return created(shape, dtype, {"init": "uniform", "seed": int(seed), "low": float(low), "high": float(high)})


def normal(shape: Shape, *, mean: float = 0.0, deviation: float = 1.0, seed: int = 0, dtype: Any = float) -> Array:
    """Random numbers of a normal distribution, the same for a seed however the array is cut."""
    params = {"init": "normal", "seed": int(seed), "mean": float(mean), "deviation": float(deviation)}
    return created(shape, dtype, params)


def integers(low: int, high: int, shape: Shape, *, seed: int = 0, dtype: Any = np.int64) -> Array:
    """Random integers in [low, high), the same for a seed however the array is cut."""
    return created(shape, dtype, {"init": "integers", "seed": int(seed), "low": int(low), "high": int(high)})


def text_of(value: Operand) -> Any:
    """A number as JSON has it: those that it lacks as text."""
    return value if isinstance(value, (bool, int)) or (isinstance(value, float) and np.isfinite(value)) else str(value)
