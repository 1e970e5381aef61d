"""What sessions of compiled drivers share, through ctypes: the functions at the end of treadle_session.h."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from treadle.planner.errors import InputError

Row = TypeVar("Row", bound=ctypes.Structure)

POINTER, INTEGER, TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
Signatures = Mapping[str, tuple[Any, Sequence[Any]]]
"""C functions by name: the type of the result, None without one, and those of the arguments."""
SHARED: Signatures = {
    "treadle_message": (TEXT, []),
    "treadle_handle_bytes": (INTEGER, []),
    "treadle_close": (None, [POINTER]),
    "treadle_share": (INTEGER, [POINTER, INTEGER, POINTER]),
    "treadle_attach": (INTEGER, [POINTER, INTEGER, TEXT]),
    "treadle_detach": (INTEGER, [POINTER]),
    "treadle_wait": (INTEGER, [POINTER]),
}
GAVE_UP = 2


class NativeSession:
    """Arenas of ranks, in a library whose driver adds the functions of `signatures`; errors call it `name`. Subclasses
    open the driver's session as `_handle`."""

    def __init__(self, library: Path, signatures: Signatures, name: str) -> None:
        self.library: Any = ctypes.CDLL(str(library))
        for function, (result, arguments) in {**SHARED, **signatures}.items():
            made = getattr(self.library, function)
            made.restype, made.argtypes = result, arguments
        self._name = name
        self._handle = ctypes.c_void_p()
        self._kept: object = None

    def share(self, rank: int) -> bytes:
        """The handle with which another process attaches the arena of `rank`."""
        handle = ctypes.create_string_buffer(self.library.treadle_handle_bytes())
        self._require(self.library.treadle_share(self._handle, rank, handle))
        return handle.raw

    def attach(self, rank: int, handle: bytes) -> None:
        """Make the arena of a rank of another process reachable."""
        self._require(self.library.treadle_attach(self._handle, rank, handle))

    def detach(self) -> None:
        """Detach the arenas of other processes; no launch is possible afterwards."""
        self._require(self.library.treadle_detach(self._handle))

    def close(self) -> None:
        if self._handle:
            self.library.treadle_close(self._handle)
            self._handle = ctypes.c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _ended(self) -> bool:
        """Wait for all launches; False when one gave up."""
        status = self.library.treadle_wait(self._handle)
        if status != GAVE_UP:
            self._require(status)
        return bool(status != GAVE_UP)

    def _rows(self, function: Any, row: type[Row], most: int) -> list[Row]:
        """What a function of the driver writes: rows of a C struct."""
        rows = (row * most)()
        count = function(self._handle, rows, most)
        if count < 0:
            self._require(1)
        return list(rows[:count])

    def _require(self, status: int) -> None:
        if status:
            raise InputError(self.library.treadle_message().decode(), where=self._name)
