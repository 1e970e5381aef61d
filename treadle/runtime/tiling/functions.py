"""What operators apply to tiles: one table of functions, and the one call by which all engines apply them.

A function of `map` takes the operands with NumPy's broadcasting. One of `fold` takes `axis` (a tuple), `keepdims` and
`dtype`, and `combine` is the ufunc that merges what two workers have folded. One of `scan` takes `axis` and `dtype`.
One of `join_update` takes one joined part of each input. Functions of the user are named `module:function`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from treadle.planner.errors import InputError
from treadle.planner.passes.tiling.map_fusion import FUSED
from treadle.runtime.tiling import along, factorised

Tile = np.ndarray[Any, Any]
_NOT_OF_FUNCTIONS = ("constants", "combine", "keepdims", "before", "located")
"""Parameters that say how a function is applied."""
_OF_USER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Function:
    """`combine` names the ufunc of NumPy that merges partial results; None where only one worker has one."""

    local: Callable[..., Any]
    combine: str | None = None


class ArrayError(InputError, ValueError, TypeError, IndexError):
    """Operands that do not fit together; where NumPy raises ValueError, TypeError or IndexError, this is all three."""


class TileCall(Protocol):
    """What nodes of problems and of lazy arrays have in common."""

    @property
    def operator(self) -> str: ...
    @property
    def function(self) -> str: ...
    @property
    def axes(self) -> tuple[int, ...]: ...
    @property
    def params(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class NamedCall:
    """A call as text or parameters have it; by default a map."""

    function: str
    params: dict[str, Any]
    operator: str = "map"
    axes: tuple[int, ...] = ()


def _reduced(ufunc: Any, tile: Tile, *, axis: tuple[int, ...], keepdims: bool, dtype: Any) -> Any:
    kind: dict[str, Any] = {"dtype": dtype} if ufunc in (np.add, np.multiply) else {}
    return ufunc.reduce(tile, axis=axis, keepdims=keepdims, **kind)


def _counted(tile: Tile, *, axis: tuple[int, ...], keepdims: bool, dtype: Any) -> Any:
    return _reduced(np.add, tile.astype(bool), axis=axis, keepdims=keepdims, dtype=dtype)


def _only(tile: Tile, *, axis: tuple[int, ...], keepdims: bool, dtype: Any) -> Any:
    """The tile without `axis`, along which it has one element."""
    return tile if keepdims else tile.squeeze(axis)


def _running(ufunc: Any, tile: Tile, *, axis: int, dtype: Any) -> Any:
    kind: dict[str, Any] = {"dtype": dtype} if ufunc in (np.add, np.multiply) else {}
    return ufunc.accumulate(tile, axis=axis, **kind)


def _fold(ufunc: np.ufunc) -> Function:
    return Function(partial(_reduced, ufunc), ufunc.__name__)


def _scan(ufunc: np.ufunc) -> Function:
    return Function(partial(_running, ufunc), ufunc.__name__)


_OF_NUMPY = (
    "add subtract multiply divide floor_divide remainder power negative positive absolute sign square sqrt cbrt "
    "exp expm1 exp2 log log1p log2 log10 sin cos tan arcsin arccos arctan arctan2 sinh cosh tanh arcsinh arccosh "
    "arctanh floor ceil trunc rint round hypot copysign nextafter logaddexp logaddexp2 maximum minimum fmax fmin "
    "signbit reciprocal isfinite isinf isnan equal not_equal less less_equal greater greater_equal logical_and "
    "logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor invert left_shift right_shift real imag "
    "conjugate angle where fmod deg2rad rad2deg heaviside float_power gcd lcm"
)
FUNCTIONS: dict[str, Function] = {
    **{name: Function(getattr(np, name)) for name in _OF_NUMPY.split()},
    "astype": Function(lambda tile: tile),
    "first": Function(along.first),
    "sum": _fold(np.add),
    "prod": _fold(np.multiply),
    "max": _fold(np.maximum),
    "min": _fold(np.minimum),
    "any": _fold(np.logical_or),
    "all": _fold(np.logical_and),
    "count_nonzero": Function(_counted, "add"),
    "only": Function(_only),
    "cumulative_sum": _scan(np.add),
    "cumulative_prod": _scan(np.multiply),
    "matmul": Function(np.matmul, "add"),
    **{name: Function(local) for name, local in (along.FUNCTIONS | factorised.FUNCTIONS).items()},
}


def function_of(name: str) -> Function:
    """The function `name` of the table or of the user. Raises InputError for other names."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if not _OF_USER.fullmatch(name):
        raise InputError(f"no function {name!r} for tiles; one of your own is named module:function")
    module, path = name.split(":")
    try:
        found: Any = importlib.import_module(module)
        for word in path.split("."):
            found = getattr(found, word)
    except (ImportError, AttributeError) as error:
        raise InputError(f"the function {name} of a node cannot be imported: {error}") from error
    if not callable(found):
        raise InputError(f"{name} of a node is no function")
    return Function(found)


def combine_of(node: TileCall) -> np.ufunc | None:
    """The ufunc that merges partial results of the node; None where only one worker has one."""
    name = node.params.get("combine", None if ":" in node.function else function_of(node.function).combine)
    if name is None:
        return None
    found = getattr(np, str(name), None)
    if not isinstance(found, np.ufunc) or found.nin != 2:
        raise InputError(f"{name!r} merges no partial results of {node.function}; name a binary ufunc of NumPy")
    return found


def constant(kind: str, text: str) -> Any:
    """A scalar operand: of Python (whose dtype decides nothing) or of NumPy (whose dtype is promoted)."""
    python: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "complex": complex}
    if kind == "bool":
        return text == "True"
    return python[kind](text) if kind in python else np.array(text).astype(kind)[()]


def operands(tiles: Sequence[Tile], params: Mapping[str, Any]) -> list[Any]:
    """The tiles with the constants of `params` at their places among them."""
    found: list[Any] = list(tiles)
    for place, kind, text in params.get("constants", ()):
        found.insert(place, constant(kind, text))
    return found


def _placed(emitted: Any, shape: tuple[int, ...], dtype: np.dtype[Any], combine: np.ufunc) -> Tile:
    """Pairs (start, data) in an array of `shape`, which is neutral elsewhere; `combine` merges what meets."""
    made = np.full(shape, neutral(combine, dtype), dtype)
    for start, data in emitted:
        part = np.asarray(data)
        place = tuple(slice(at, at + size) for at, size in zip(start, part.shape, strict=True))
        made[place] = combine(made[place], part)
    return made


def neutral(combine: np.ufunc, dtype: np.dtype[Any]) -> Any:
    """What `combine` leaves any value of `dtype` as it is with. Raises InputError where nothing does."""
    if combine in (np.maximum, np.fmax, np.minimum, np.fmin):
        limits: Any = np.iinfo(dtype) if dtype.kind in "iu" else None
        least, largest = (
            (limits.min, limits.max) if limits else (False, True) if dtype.kind == "b" else (-np.inf, np.inf)
        )
        return least if combine in (np.maximum, np.fmax) else largest
    if combine.identity is None:
        raise InputError(f"{combine.__name__} has no neutral element")
    return combine.identity


def stepped(tiles: Sequence[Tile], steps: Sequence[Mapping[str, Any]]) -> Tile:
    """The result of the last of the `steps` of maps that run together, on tiles of the same place."""
    found = list(tiles)
    for step in steps:
        call = NamedCall(str(step["function"]), dict(step["params"]))
        found.append(called(call, [found[number] for number in step["inputs"]], step["dtype"]))
    return found[-1]


def called(node: TileCall, tiles: Sequence[Tile], dtype: Any, local: Callable[..., Any] | None = None) -> Tile:
    """What `node` makes of whole arrays or of tiles, as `dtype` (None: what the function gives); `local` is its
    function where it has no name.

    For `slice` pass the whole array. Raises ArrayError with the function and its message where that fails.
    """
    try:
        with np.errstate(all="ignore"):
            made = np.asarray(_applied(node, tiles, dtype, local))
            return made if dtype is None else made.astype(dtype, copy=False)
    except InputError:
        raise
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ArrayError(f"{node.function}: {(str(error) or type(error).__name__).splitlines()[0]}") from error


def _applied(node: TileCall, tiles: Sequence[Tile], dtype: Any, local: Callable[..., Any] | None) -> Any:
    if "before" in node.params:
        tiles = [stepped(tiles, node.params["before"])]
    match node.operator:
        case "slice":
            return tiles[0][tuple(slice(*part) for part in node.params["region"])]
        case "swapaxis":
            return np.swapaxes(tiles[0], *node.axes)
        case "filter" if node.function == "filter":
            return np.compress(tiles[1], tiles[0], axis=0)
        case "map" if node.function == FUSED:
            return stepped(tiles, node.params["steps"])
    apply = local or function_of(node.function).local
    plain = {name: value for name, value in node.params.items() if name not in _NOT_OF_FUNCTIONS}
    if node.operator in ("fold", "scan") and not local and ":" not in node.function:
        plain["dtype"] = dtype
    match node.operator:
        case "fold":
            return apply(tiles[0], axis=node.axes, keepdims=bool(node.params.get("keepdims", False)), **plain)
        case "scan":
            return apply(tiles[0], axis=node.axes[0], **plain)
    made = apply(*operands(tiles, node.params), **plain)
    if "located" in node.params:
        return _placed(made, tuple(node.params["located"]), np.dtype(dtype), combine_of(node) or np.add)
    return made
