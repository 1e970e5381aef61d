"""The lazy array: operators on it build a graph, which runs when a value is needed.

A value is needed for output (`print`, `float`, NumPy's functions), for control flow (`if`, `while`) and where the user
asks for it (`numpy`, `evaluate`). Nothing is overwritten: after `x += y` the object `x` shows a new node.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from treadle.array.forcing import values_of
from treadle.array.in_place import InPlace
from treadle.array.node import LazyNode, Values, problem_of
from treadle.array.settings import CAPTURING

API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")


class Array(InPlace):
    """An array of numbers that is computed when it is needed. `node` is the operation that makes it."""

    __slots__ = ("__weakref__", "node")
    __array_priority__ = 100

    def __init__(self, node: LazyNode) -> None:
        self.node = node
        node.handles += 1

    def __copy__(self) -> Array:
        return Array(self.node)

    def __deepcopy__(self, memo: Any) -> Array:
        return Array(self.node)

    def __del__(self) -> None:
        self.node.handles -= 1

    # What is known before evaluation

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.node.dtype

    @property
    def ndim(self) -> int:
        return len(self.node.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Evaluates the array where only the data decide it, as after a filter."""
        if self.node.ragged is not None:
            if CAPTURING.get():
                from treadle.array.lowering import known_shape

                known_shape(self, "the program")
            return tuple(self.numpy().shape)
        return self.node.shape

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=int))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def device(self) -> str:
        return "cpu"

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        if api_version not in (None, *API_VERSIONS):
            raise ValueError(f"the versions of the array API standard are {', '.join(API_VERSIONS)}, not {api_version}")
        return _namespace()

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        options: dict[str, Any] = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        return self.numpy().copy().__dlpack__(stream=stream, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    # Where a value is needed

    def numpy(self) -> Values:
        """The values, as a read-only array of NumPy."""
        return values_of([self.node])[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Values:
        values = self.numpy()
        return (
            values.astype(dtype) if dtype is not None and dtype != values.dtype else values.copy() if copy else values
        )

    def item(self) -> Any:
        return self.numpy().item()

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def __complex__(self) -> complex:
        return complex(self._scalar())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError(f"an array of {self.dtype} is no index")
        return int(self._scalar())

    def _scalar(self) -> Any:
        if self.ndim:
            raise TypeError("only arrays without axes become Python scalars")
        return self.numpy().item()

    def __repr__(self) -> str:
        return repr(self.numpy()).replace("array(", "Array(", 1)

    def __str__(self) -> str:
        return str(self.numpy())

    def __format__(self, form: str) -> str:
        return format(self.item() if not self.ndim else self.numpy(), form)

    def __iter__(self) -> Iterator[Array]:
        return (self[place] for place in range(len(self)))

    # NumPy's protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        from treadle.array.protocol import apply_ufunc

        return apply_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        from treadle.array.protocol import apply_function

        return apply_function(function, args, options)

    # Indexing and axes

    def __getitem__(self, key: Any) -> Array:
        from treadle.array.indexing import item_of

        return item_of(self, key)

    @property
    def T(self) -> Array:
        return self._call("permute_dims", tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Array:
        return self._call("matrix_transpose")

    @property
    def real(self) -> Array:
        return self._call("real")

    @property
    def imag(self) -> Array:
        return self._call("imag")

    def _call(self, name: str, *args: Any, **options: Any) -> Array:
        made: Array = getattr(_namespace(), name)(self, *args, **options)
        return made

    def astype(self, dtype: Any) -> Array:
        return self._call("astype", dtype)

    def reshape(self, *shape: Any) -> Array:
        return self._call("reshape", shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)

    def transpose(self, *axes: Any) -> Array:
        return self._call("transpose", *([axes] if len(axes) > 1 else axes))

    def sum(self, axis: Any = None, **options: Any) -> Array:
        return self._call("sum", axis, **options)

    def prod(self, axis: Any = None, **options: Any) -> Array:
        return self._call("prod", axis, **options)

    def mean(self, axis: Any = None, **options: Any) -> Array:
        return self._call("mean", axis, **options)

    def max(self, axis: Any = None, **options: Any) -> Array:
        return self._call("max", axis, **options)

    def min(self, axis: Any = None, **options: Any) -> Array:
        return self._call("min", axis, **options)

    def any(self, axis: Any = None, **options: Any) -> Array:
        return self._call("any", axis, **options)

    def all(self, axis: Any = None, **options: Any) -> Array:
        return self._call("all", axis, **options)

    def argmax(self, axis: Any = None, **options: Any) -> Array:
        return self._call("argmax", axis, **options)

    def argmin(self, axis: Any = None, **options: Any) -> Array:
        return self._call("argmin", axis, **options)

    def var(self, axis: Any = None, **options: Any) -> Array:
        return self._call("var", axis=axis, **options)

    def std(self, axis: Any = None, **options: Any) -> Array:
        return self._call("std", axis=axis, **options)

    def cumsum(self, axis: int | None = None, **options: Any) -> Array:
        return self._call("cumsum", axis, **options)

    def clip(self, min: Operand | None = None, max: Operand | None = None) -> Array:
        return self._call("clip", min, max)

    def round(self, decimals: int = 0) -> Array:
        return self._call("round", decimals)

    def conj(self) -> Array:
        return self._call("conj")

    def ravel(self) -> Array:
        return self._call("reshape", (-1,))

    def flatten(self) -> Array:
        return self._call("reshape", (-1,))

    def dot(self, other: Operand) -> Array:
        return self._call("dot", other)

    # Operators

    def __neg__(self) -> Array:
        return self._call("negative")

    def __pos__(self) -> Array:
        return self._call("positive")

    def __abs__(self) -> Array:
        return self._call("abs")

    def __invert__(self) -> Array:
        return self._call("bitwise_invert")

    def __add__(self, other: Operand) -> Any:
        return _binary("add", self, other)

    def __radd__(self, other: Operand) -> Any:
        return _binary("add", other, self)

    def __sub__(self, other: Operand) -> Any:
        return _binary("subtract", self, other)

    def __rsub__(self, other: Operand) -> Any:
        return _binary("subtract", other, self)

    def __mul__(self, other: Operand) -> Any:
        return _binary("multiply", self, other)

    def __rmul__(self, other: Operand) -> Any:
        return _binary("multiply", other, self)

    def __truediv__(self, other: Operand) -> Any:
        return _binary("divide", self, other)

    def __rtruediv__(self, other: Operand) -> Any:
        return _binary("divide", other, self)

    def __floordiv__(self, other: Operand) -> Any:
        return _binary("floor_divide", self, other)

    def __rfloordiv__(self, other: Operand) -> Any:
        return _binary("floor_divide", other, self)

    def __mod__(self, other: Operand) -> Any:
        return _binary("remainder", self, other)

    def __rmod__(self, other: Operand) -> Any:
        return _binary("remainder", other, self)

    def __pow__(self, other: Operand) -> Any:
        return _binary("pow", self, other)

    def __rpow__(self, other: Operand) -> Any:
        return _binary("pow", other, self)

    def __matmul__(self, other: Operand) -> Any:
        return _binary("matmul", self, other)

    def __rmatmul__(self, other: Operand) -> Any:
        return _binary("matmul", other, self)

    def __and__(self, other: Operand) -> Any:
        return _binary("bitwise_and", self, other)

    def __rand__(self, other: Operand) -> Any:
        return _binary("bitwise_and", other, self)

    def __or__(self, other: Operand) -> Any:
        return _binary("bitwise_or", self, other)

    def __ror__(self, other: Operand) -> Any:
        return _binary("bitwise_or", other, self)

    def __xor__(self, other: Operand) -> Any:
        return _binary("bitwise_xor", self, other)

    def __rxor__(self, other: Operand) -> Any:
        return _binary("bitwise_xor", other, self)

    def __lshift__(self, other: Operand) -> Any:
        return _binary("bitwise_left_shift", self, other)

    def __rlshift__(self, other: Operand) -> Any:
        return _binary("bitwise_left_shift", other, self)

    def __rshift__(self, other: Operand) -> Any:
        return _binary("bitwise_right_shift", self, other)

    def __rrshift__(self, other: Operand) -> Any:
        return _binary("bitwise_right_shift", other, self)

    def __lt__(self, other: Operand) -> Any:
        return _binary("less", self, other)

    def __le__(self, other: Operand) -> Any:
        return _binary("less_equal", self, other)

    def __gt__(self, other: Operand) -> Any:
        return _binary("greater", self, other)

    def __ge__(self, other: Operand) -> Any:
        return _binary("greater_equal", self, other)

    def __eq__(self, other: object) -> Any:
        return _binary("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return _binary("not_equal", self, other)

    def to_device(self, device: str, /, *, stream: Any = None) -> Array:
        if device != "cpu":
            raise problem_of(f"arrays are on the device cpu, not {device!r}")
        return self


def evaluate(*arrays: Array) -> None:
    """Evaluate the arrays, together: what several need is computed once."""
    values_of([each.node for each in arrays])


Operand = Array | np.ndarray[Any, Any] | np.generic | bool | int | float | complex


def _binary(name: str, one: Any, other: Any) -> Any:
    numbers = (Array, np.ndarray, np.generic, bool, int, float, complex)
    if not isinstance(one, numbers) or not isinstance(other, numbers):
        return NotImplemented
    return getattr(_namespace(), name)(one, other)


def _namespace() -> ModuleType:
    """The package, whose functions the operators and methods are."""
    return sys.modules["treadle.array"]
