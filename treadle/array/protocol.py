"""NumPy's protocols: `np.exp(x)` of a lazy array is lazy; what has no counterpart is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import treadle
from treadle.runtime.tiling.functions import ArrayError

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "out": (None,),
    "where": (True, np._NoValue),
    "initial": (np._NoValue,),
    "dtype": (None,),
    "casting": ("same_kind",),
    "order": ("K", "C", None),
    "subok": (True,),
    "kind": (None,),
    "mode": ("raise",),
    "like": (None,),
}
"""Options of NumPy that say what happens anyway."""
_RENAMED = {"a_min": "min", "a_max": "max"}
_REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
}
_SCANS = {"add": "cumsum", "multiply": "cumprod"}


def apply_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What NumPy calls for `ufunc` on operands of which one is a lazy array."""
    name = ufunc.__name__
    match method:
        case "__call__":
            found = _public(name, "numpy")
        case "reduce" if name in _REDUCTIONS:
            found = _public(_REDUCTIONS[name], "numpy")
            options = {"axis": 0, **options}
        case "accumulate" if name in _SCANS:
            found = _public(_SCANS[name], "numpy")
            options = {"axis": 0, **options}
        case "outer":
            from treadle.array.manipulation import expand_dims

            one, other = inputs
            rank = np.ndim(one)
            found = _public(name, "numpy")
            inputs = (expand_dims(one, tuple(range(rank, rank + np.ndim(other)))), other)
        case _:
            found = None
    if found is None:
        raise TypeError(f"treadle.array has no numpy.{name}{'' if method == '__call__' else '.' + method}")
    return _applied(found, f"numpy.{name}", inputs, options)


def apply_function(function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """What NumPy calls for `function` where an argument is a lazy array."""
    module, name = getattr(function, "__module__", "numpy"), function.__name__
    found = _public(name, module)
    if function is np.shape:
        return args[0].shape
    if function is np.ndim:
        return args[0].ndim
    if function is np.size:
        return args[0].size
    if found is None:
        raise TypeError(f"treadle.array has no {module}.{name}")
    return _applied(found, f"{module}.{name}", args, options)


def _public(name: str, module: str) -> Callable[..., Any] | None:
    """The function of treadle.array, or of its linalg or fft, that goes by the name of NumPy's."""
    part = next((part for part in ("linalg", "fft") if module.startswith(f"numpy.{part}")), None)
    home = getattr(treadle.array, part, None) if part else treadle.array
    found = getattr(home, name, None) if name in getattr(home, "__all__", ()) else None
    return found if callable(found) else None


def _neutral(option: str, value: Any) -> bool:
    return any(value is each or (isinstance(value, str) and value == each) for each in _NEUTRAL.get(option, ()))


def _applied(found: Callable[..., Any], name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    left = {_RENAMED.get(option, option): value for option, value in options.items() if not _neutral(option, value)}
    try:
        return found(*args, **left)
    except ArrayError:
        raise
    except TypeError as error:
        if "argument" in str(error):
            raise TypeError(f"{name} of treadle.array: {error}") from error
        raise
