"""Tensors as PyTorch's execution trace observer writes them, in its own JSON and inside Chakra nodes.

An argument that is a tensor is `[tensor, storage, offset, elements, bytes per element, device]` with a shape and a type
such as `Tensor(float)` next to it. The numbers are handed out per memory address, so a number that an operator returns
anew means a new tensor, and one storage can be met again after it was freed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from treadle.planner.documents.trace import Role, Tensor

DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
}


class Seen(NamedTuple):
    """One tensor argument; what was not written is None."""

    number: int
    storage: int
    bytes: int
    shape: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    dtype: str | None


@dataclass
class Observed:
    """Tensors in the order they are met, and which id each observed number means at the moment."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    current: dict[int, str] = field(default_factory=dict)
    storages: dict[str, int] = field(default_factory=dict)

    def read(self, arguments: list[Seen]) -> tuple[str, ...]:
        """Ids of the tensors an operator reads; those never seen come from outside."""
        return tuple(
            dict.fromkeys(self.current.get(seen.number) or self._new(seen, "unknown", ()) for seen in arguments)
        )

    def write(self, results: list[Seen], inputs: tuple[str, ...], role: Role) -> tuple[str, ...]:
        """Ids of the tensors an operator makes; one that it was given itself is none of them."""
        made: list[str] = []
        for seen in dict.fromkeys(results):
            if self.current.get(seen.number) not in (*inputs, *made):
                made.append(self._new(seen, role, inputs))
        return tuple(made)

    def _new(self, seen: Seen, role: Role, inputs: tuple[str, ...]) -> str:
        key = base = f"t{seen.number}"
        version = 1
        while key in self.tensors:
            version += 1
            key = f"{base}.{version}"
        self.tensors[key] = Tensor(
            id=key,
            role=role,
            bytes=seen.bytes,
            shape=seen.shape,
            stride=seen.stride,
            dtype=seen.dtype,
            alias_of=next((i for i in inputs if self.storages[i] == seen.storage), None),
        )
        self.current[seen.number] = key
        self.storages[key] = seen.storage
        return key


def tensors_of(values: Any, shapes: Any, types: Any, strides: Any = None) -> Iterator[Seen]:
    """The tensors among arguments written as parallel nested lists, at any depth; anything else is passed over."""
    if not isinstance(values, list | tuple):
        return
    for place, value in enumerate(values):
        kind = _at(types, place)
        shape, stride = _at(shapes, place), _at(strides, place)
        if _is_tensor(value) and (kind is None or str(kind).startswith("Tensor(")):
            number, storage, _, elements, size, _ = value
            if size:
                dtype = DTYPES.get(str(kind).removeprefix("Tensor(").removesuffix(")"))
                yield Seen(number, storage, elements * size, _sizes(shape), _sizes(stride), dtype)
        elif isinstance(value, list | tuple):
            inner = _split(str(kind).removeprefix("GenericList[").removesuffix("]")) if kind else None
            yield from tensors_of(value, shape, inner, stride)


def _is_tensor(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 6
        and isinstance(value[5], str)
        and all(isinstance(part, int) and not isinstance(part, bool) and 0 <= part < 2**62 for part in value[:5])
        and value[3] * value[4] < 2**62
    )


def _at(items: Any, place: int) -> Any:
    return items[place] if isinstance(items, list | tuple) and place < len(items) else None


def _sizes(value: Any) -> tuple[int, ...] | None:
    plain = isinstance(value, list | tuple) and all(type(size) is int and 0 <= size < 2**62 for size in value)
    return tuple(value) if plain else None


def _split(text: str) -> list[str]:
    """Split at the commas that lie in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([<") - (letter in ")]>")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
