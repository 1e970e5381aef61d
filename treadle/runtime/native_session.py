"""What sessions of compiled drivers share, through ctypes: the functions at the end of treadle_session.h."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from treadle.planner.errors import CheckFailed, InputError

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
    "treadle_watch": (INTEGER, [POINTER]),
    "treadle_aborted": (ctypes.c_uint32, [POINTER]),
    "treadle_calls": (None, [POINTER, POINTER]),
}
GAVE_UP = 2
LATE = 2
CAUSES = {
    1: "{what} does not end",
    LATE: "{what} does not end: rank {rank} waited longer than its limit",
    3: "rank {rank} closed {what} before all ranks were done",
    4: "rank {rank} has ended before it was done",
}
"""By the causes of treadle_types.h."""
UNKNOWN_CALLS = 2**64 - 1


class NativeSession:
    """Arenas of ranks, in a library whose driver adds the functions of `signatures`; errors call it `name`. Subclasses
    open the driver's session as `_handle`."""

    what = "the program"

    def __init__(self, library: Path, signatures: Signatures, name: str, ranks: int) -> None:
        self.library: Any = ctypes.CDLL(str(library))
        for function, (result, arguments) in {**SHARED, **signatures}.items():
            made = getattr(self.library, function)
            made.restype, made.argtypes = result, arguments
        self._name, self._ranks, self._process = name, ranks, os.getpid()
        self._handle = ctypes.c_void_p()
        self._kept: object = None

    def share(self, rank: int) -> bytes:
        """The handle with which another process attaches the arena of `rank`."""
        handle = ctypes.create_string_buffer(self.library.treadle_handle_bytes())
        self._require(self.library.treadle_share(self._handle, rank, handle))
        return handle.raw

    def attach(self, rank: int, handle: bytes) -> None:
        """Make the arena of a rank of another process reachable."""
        if len(handle) != (size := self.library.treadle_handle_bytes()):
            raise InputError(f"found a handle of {len(handle)} bytes, expected {size}", where=self._name)
        self._require(self.library.treadle_attach(self._handle, rank, handle))

    def watch(self) -> None:
        """From now on the end of another process of this host ends all launches, however long they may wait. Once all
        ranks are attached."""
        self._require(self.library.treadle_watch(self._handle))

    def fault(self) -> str | None:
        """Why the program was given up, by whichever rank; None while it was not. Does not wait for a GPU."""
        word = self.library.treadle_aborted(self._handle)
        if not word:
            return None
        cause, rank = word >> 24, word & 0xFFFFFF
        return CAUSES[cause].format(rank=rank, what=self.what) + (self._behind() if cause == LATE else "")

    def _behind(self) -> str:
        """The ranks that have made fewer calls than others."""
        calls = (ctypes.c_uint64 * self._ranks)()
        self.library.treadle_calls(self._handle, calls)
        most = max((each for each in calls if each != UNKNOWN_CALLS), default=0)
        return "".join(
            f"; rank {rank} has made {each} of {most} calls" for rank, each in enumerate(calls) if each < most
        )

    def require_standing(self) -> None:
        """Raises CheckFailed once any rank has given up: counters stand anywhere then."""
        if (fault := self.fault()) is not None:
            raise CheckFailed(f"{self._name}: not usable any more: {fault}")

    def detach(self) -> None:
        """Detach the arenas of other processes; no launch is possible afterwards."""
        self._require(self.library.treadle_detach(self._handle))

    def close(self) -> None:
        """Give back the memory. Launches of processes that are still attached end, and later ones are refused."""
        if self._handle and os.getpid() == self._process:  # a fork has neither the threads nor the GPU
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
