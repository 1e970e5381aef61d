"""The tensors of a schedule in memory: in every row, which is a rank of a run, one piece for each buffer; private or
shared with other processes.

Shared memory has no name: it is an open file of the process that made it, which goes with the last process that has
it, so that nothing is left behind however they end.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.codegen.fusion.kernel import Buffer
from treadle.planner.errors import CheckFailed
from treadle.planner.machine.dtypes import BYTES, Dtype

ALIGNMENT = 128
NUMPY: dict[Dtype, Any] = {
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int32,
    "i64": np.int64,
    "bool": np.bool_,
}
"""bf16 as bare bits, which NumPy does not know."""
POISON = 0xFF
"""Bytes of unwritten memory: NaN as floats."""


@dataclass(frozen=True)
class Handle:
    """What another process needs to reach the memory."""

    process: int
    file: int


class Tensors:
    """Zeroed memory for `rows` times `buffers`; that of another process where a handle is given."""

    def __init__(
        self, buffers: Sequence[Buffer], rows: int, *, shared: bool = False, handle: Handle | None = None
    ) -> None:
        self.buffers, self.rows, self._file = tuple(buffers), rows, -1
        self.offsets, self._bytes = _layout(buffers)
        size = max(1, rows * self._bytes)
        if handle is not None:
            file = _opened(handle)
            self._memory = mmap.mmap(file, size)
            os.close(file)
        elif shared:
            self._file = os.memfd_create("treadle")
            os.ftruncate(self._file, size)
            self._memory = mmap.mmap(self._file, size)
        else:
            self._memory = mmap.mmap(-1, size)

    @property
    def handle(self) -> Handle:
        return Handle(os.getpid(), self._file)

    def array(self, row: int, index: int) -> NDArray[Any]:
        """Buffer `index` of a row, flat; it is the memory itself."""
        buffer = self.buffers[index]
        start = row * self._bytes + self.offsets[index]
        return np.frombuffer(self._memory, NUMPY[buffer.dtype], buffer.elements, start)

    def address(self, row: int, index: int) -> int:
        start = row * self._bytes + self.offsets[index]
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory, start))

    def row(self, row: int) -> NDArray[np.uint8]:
        """All buffers of a row as bytes; they begin at `offsets`."""
        return np.frombuffer(self._memory, np.uint8, self._bytes, row * self._bytes)

    def addresses(self, row: int) -> list[int]:
        """The addresses of all buffers of a row."""
        return [self.address(row, index) for index in range(len(self.buffers))]

    def poison(self, rows: Sequence[int] | None = None) -> None:
        """Make what is read before it is written be seen, in all rows or in `rows`."""
        for row in range(self.rows) if rows is None else rows:
            for index in range(len(self.buffers)):
                self.array(row, index).view(np.uint8)[:] = POISON

    def close(self) -> None:
        """Give the memory back, once no array of it is left."""
        with suppress(BufferError):
            self._memory.close()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _layout(buffers: Sequence[Buffer]) -> tuple[tuple[int, ...], int]:
    """Where each buffer begins, and the bytes of all."""
    offsets, end = [], 0
    for buffer in buffers:
        offsets.append(end)
        end += -(-max(1, buffer.elements) * BYTES[buffer.dtype] // ALIGNMENT) * ALIGNMENT
    return tuple(offsets), end


def _opened(handle: Handle) -> int:
    try:
        return os.open(f"/proc/{handle.process}/fd/{handle.file}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise CheckFailed(f"found no memory of process {handle.process}: {error.strerror}") from None
