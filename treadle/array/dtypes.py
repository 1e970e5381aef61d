"""The numbers that arrays hold, promoted as NumPy does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.array.lazy import Array
from treadle.array.node import problem_of

bool = np.dtype("bool")
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{bits}") for bits in (16, 32, 64))
complex64, complex128 = np.dtype("complex64"), np.dtype("complex128")


def dtype_of(operand: Any) -> Any:
    """The dtype of an array or of what names one; Python scalars stay themselves and decide nothing."""
    return operand.dtype if isinstance(operand, (Array, np.ndarray)) else operand


def result_type(*operands: Any) -> np.dtype[Any]:
    try:
        return np.result_type(*map(dtype_of, operands))
    except TypeError as error:
        raise problem_of(str(error)) from error


def can_cast(one: Any, other: Any, /) -> Any:
    return np.can_cast(dtype_of(one), other)


def isdtype(dtype: Any, kind: Any) -> Any:
    return np.isdtype(np.dtype(dtype), kind)


def astype(x: Array, dtype: Any, /, *, copy: Any = True, device: str | None = None) -> Array:
    from treadle.array.lowering import mapped

    if device not in (None, "cpu"):
        raise problem_of(f"arrays are on the device cpu, not {device!r}")
    if x.dtype == dtype:
        return Array(x.node) if copy else x
    return mapped("astype", x, dtype=np.dtype(dtype))


@dataclass(frozen=True)
class FloatLimits:
    """What a floating-point dtype can hold, as Python numbers; of a complex dtype: its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype[Any]


def finfo(kind: Any, /) -> FloatLimits:
    """The limits of a floating-point dtype, or of the dtype of an array."""
    found = np.finfo(dtype_of(kind))
    return FloatLimits(
        int(found.bits),
        float(found.eps),
        float(found.max),
        float(found.min),
        float(found.smallest_normal),
        found.dtype,
    )


def iinfo(kind: Any, /) -> Any:
    """The limits of an integer dtype, or of the dtype of an array."""
    return np.iinfo(dtype_of(kind))


_KINDS = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
_TOGETHER = {
    "integral": ("signed integer", "unsigned integer"),
    "numeric": ("signed integer", "unsigned integer", "real floating", "complex floating"),
}


class NamespaceInfo:
    """What the Python array API standard lets programs ask of a namespace."""

    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        return "cpu"

    def devices(self) -> list[str]:
        return ["cpu"]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype[Any]]:
        return {
            "real floating": float64,
            "complex floating": complex128,
            "integral": int64,
            "indexing": int64,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """The dtypes of `kind` (several: a tuple; all: None) by name."""
        kinds = tuple(_KINDS) if kind is None else kind if isinstance(kind, tuple) else (kind,)
        unknown = [each for each in kinds if each not in _KINDS and each not in _TOGETHER]
        if unknown:
            raise problem_of(f"no kind {unknown[0]!r} of dtypes; there are {', '.join((*_KINDS, *_TOGETHER))}")
        single = [part for each in kinds for part in _TOGETHER.get(each, (each,))]
        return {name: np.dtype(name) for each in single for name in _KINDS[each]}


def __array_namespace_info__() -> NamespaceInfo:
    return NamespaceInfo()
