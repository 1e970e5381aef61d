"""How a device's state is one range of bytes: a header, then all tensors where they lie in memory, largest elements
first, so that each starts at a multiple of its element's size.

The header has a table of the tensors and a tree of plain values in which numbers stand for them. It is a pickle that
loads nothing but plain values, since it comes from the memory of other machines.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from treadle.planner.errors import CheckFailed, InputError

CALLER = "treadle.checkpoint.attach"
MAGIC = b"treadle1"
PREFIX = struct.Struct("<8sQQQ")
"""Mark, version, bytes of the header, bytes of the whole."""
ALIGNMENT = 64
"""The header ends at a multiple of it."""


class PackedState(NamedTuple):
    """A version of a device's state as bytes: `parts` one after the other, of which all but the first are views of the
    tensors' own memory."""

    version: int
    parts: list[Tensor]
    bytes: int


class LocalShard(NamedTuple):
    """What a device has of a tensor that is sharded over several."""

    tensor: Tensor


class FlatTensor(NamedTuple):
    """A tensor with its memory as bytes; `flat` begins at `start`, which is `address` unless it is a copy. `place` is
    what the table says of it besides the offset: data type, shape, strides, whether it is a shard."""

    source: Tensor
    address: int
    flat: Tensor
    start: int
    bytes: int
    width: int
    place: tuple[str, tuple[int, ...], tuple[int, ...], bool]


class Packer:
    """Makes states bytes, version after version; what it finds of a tensor it keeps for the next version."""

    def __init__(self) -> None:
        self._known: dict[int, FlatTensor] = {}

    def pack(self, version: int, tree: Any) -> PackedState:
        """The bytes of `tree`: plain values, lists, tuples and dictionaries with tensors in them. Tensors that share
        memory are there once. Raises InputError for values of other types."""
        values = io.BytesIO()
        pickler = _Pickler(values, self._known)
        pickler.dump(tree)
        self._known = pickler.seen
        found = pickler.found
        table: list[Any] = [None] * len(found)
        parts, offset = [], 0
        for number in sorted(range(len(found)), key=lambda number: -found[number].width):
            each = found[number]
            table[number] = (*each.place, offset)
            if each.bytes:
                parts.append(each.flat)
            offset += each.bytes
        body = pickle.dumps((table, values.getvalue()))
        header = -(-(PREFIX.size + len(body)) // ALIGNMENT) * ALIGNMENT
        prefix = PREFIX.pack(MAGIC, version, header, header + offset)
        first = torch.frombuffer(bytearray((prefix + body).ljust(header, b"\0")), dtype=torch.uint8)
        return PackedState(version, [first, *parts], header + offset)


def unpack(data: Tensor) -> tuple[int, Any]:
    """The version and the tree in `data`, bytes in host memory that may go on behind them. Tensors are views of it,
    those of a sharded one a LocalShard. Raises CheckFailed where the bytes are none of `pack`."""
    try:
        magic, version, header, total = PREFIX.unpack(data[: PREFIX.size].numpy().tobytes())
        if magic != MAGIC or not PREFIX.size <= header <= total <= data.numel():
            raise ValueError("they begin otherwise")
        table, values = _Unpickler(io.BytesIO(data[PREFIX.size : header].numpy().tobytes()), []).load()
        body = data[header:total]
        tensors = [_view(body, *place) for place in table]
        return version, _Unpickler(io.BytesIO(values), tensors).load()
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise CheckFailed(f"found bytes that are no state of a device: {error}") from error


class _Pickler(pickle.Pickler):
    """Tensors become numbers, in the order in which they are found."""

    def __init__(self, file: io.BytesIO, known: Mapping[int, FlatTensor]) -> None:
        super().__init__(file, protocol=4)
        self.found: list[FlatTensor] = []
        self.seen: dict[int, FlatTensor] = {}
        self._known = known
        self._numbers: dict[tuple[Any, ...], int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        known = self._known.get(id(value))
        if known is None or known.source is not value or known.address != _local(value).data_ptr():
            known = _flattened(value)
        if known.start == known.address:  # it is no copy
            self.seen[id(value)] = known
        key = (known.start, known.place) if known.bytes else (len(self.found),)
        if key not in self._numbers:
            self._numbers[key] = len(self.found)
            self.found.append(known)
        return self._numbers[key]

    def reducer_override(self, value: Any) -> Any:
        if value is OrderedDict or isinstance(value, OrderedDict):
            return NotImplemented
        found = value.__name__ if isinstance(value, type) else type(value).__name__
        raise InputError(f"found a value of type {found} in a state, expected plain ones and tensors", where=CALLER)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor | LocalShard]) -> None:
        super().__init__(file)
        self.tensors = tensors

    def persistent_load(self, number: Any) -> Tensor | LocalShard:
        found: Tensor | LocalShard = self.tensors[number]
        return found

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"they name {module}.{name}")


def dense(tensor: Tensor) -> Tensor:
    """`tensor` without its gradient; where its elements leave gaps or share memory, a copy without."""
    values, expected = tensor.detach(), 1
    if values.layout != torch.strided:
        raise InputError(f"found a {values.layout} tensor in a state, expected dense ones", where=CALLER)
    axes = sorted((stride, size) for stride, size in zip(values.stride(), values.shape, strict=True) if size > 1)
    for stride, size in axes:
        if stride != expected:
            return values.contiguous()
        expected *= size
    return values.resolve_conj().resolve_neg()


def _flattened(tensor: Tensor) -> FlatTensor:
    local = _local(tensor)
    values = dense(local)
    count = values.numel()
    if count:
        flat = values.as_strided((count,), (1,), values.storage_offset()).view(torch.uint8)
    else:
        flat = values.new_empty(0, dtype=torch.uint8)
    place = (str(values.dtype).removeprefix("torch."), tuple(values.shape), values.stride(), local is not tensor)
    start, count = flat.data_ptr(), flat.numel()
    return FlatTensor(tensor, local.data_ptr(), flat, start, count, values.element_size(), place)


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _view(
    body: Tensor, name: str, shape: tuple[int, ...], strides: tuple[int, ...], sharded: bool, offset: int
) -> Tensor | LocalShard:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"they name the type {name}")
    count = math.prod(shape)
    if count:
        values = body[offset : offset + count * dtype.itemsize].view(dtype).as_strided(shape, strides)
    else:
        values = torch.empty(shape, dtype=dtype)
    return LocalShard(values) if sharded else values
