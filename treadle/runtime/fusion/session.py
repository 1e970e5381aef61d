"""A compiled schedule through ctypes: the structs and functions of treadle_fusion_driver.h."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from treadle.planner.errors import CheckFailed, InputError

HERE = 0
"""The device of ranks on the host; on GPUs its number."""
ELSEWHERE = -1
"""Instead of the device of a rank of another process."""
AWAITED = {
    1: "a message",
    2: "room on its connection",
    3: "a step of another threadblock",
    4: "the other threadblocks of its rank",
    5: "tiles",
    6: "partial sums",
}
MOST_STUCK = 1000
ALL = range(1 << 32)
"""Launches of any schedule."""


class _Call(ctypes.Structure):
    _fields_ = [
        ("streams", ctypes.POINTER(ctypes.c_void_p)),
        *((name, ctypes.c_uint64) for name in ("timeout_ns", "seed", "step", "order", "begin", "end")),
    ]


class _Stuck(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rank", "kernel", "block", "awaited", "peer")),
        ("index", ctypes.c_int64),
        *((name, ctypes.c_uint64) for name in ("expected", "found")),
    ]


LINE = 128
"""Bytes of the counts of a rank, and what they are aligned to."""


@dataclass(frozen=True)
class Counted:
    """What a rank has loaded from and stored to tensors of the caller, and sent within its group and to the next one,
    since the session opened: elements, and bytes of the tensors. All 0 in a library that does not count."""

    loaded: int
    stored: int
    loaded_bytes: int
    stored_bytes: int
    sent: int
    sent_on: int


class Session:
    """The arenas of those of `ranks` ranks that have a device in `devices`; others belong to other processes.

    `threads` of a block and `blocks` of a kernel that runs with any number: 0 for what suits the machine. Raises
    InputError where the driver refuses, for example more threadblocks than a GPU holds at once.
    """

    def __init__(
        self, library: Path, ranks: int, devices: Mapping[int, int], *, threads: int = 0, blocks: int = 0
    ) -> None:
        self._library, self._name, self.ranks = _load(library), library.name, ranks
        numbers = [devices.get(rank, ELSEWHERE) for rank in range(ranks)]
        self._handle = ctypes.c_void_p()
        self._kept: Any = None
        if self._library.treadle_fusion_ranks() != ranks:
            raise InputError(f"found {ranks} ranks, expected {self._library.treadle_fusion_ranks()} as compiled")
        opened = (ctypes.c_int32 * ranks)(*numbers)
        self._require(self._library.treadle_fusion_open(opened, threads, blocks, ctypes.byref(self._handle)))

    def share(self, rank: int) -> bytes:
        """What another process needs to reach the arena of `rank`."""
        handle = ctypes.create_string_buffer(self._library.treadle_fusion_handle_bytes())
        self._require(self._library.treadle_fusion_share(self._handle, rank, handle))
        return handle.raw

    def attach(self, rank: int, handle: bytes) -> None:
        """Make the arena of a rank of another process reachable."""
        self._require(self._library.treadle_fusion_attach(self._handle, rank, handle))

    def detach(self) -> None:
        """Let go of the arenas of other processes; no run is possible any more."""
        self._require(self._library.treadle_fusion_detach(self._handle))

    def bind(self, addresses: Mapping[int, Sequence[int]], keep: object = None) -> None:
        """The tensors of all later runs, by rank and buffer; `keep` is what they lie in. All ranks must be attached."""
        buffers = self._library.treadle_fusion_buffers()
        cells = (ctypes.c_void_p * (self.ranks * buffers + 1))()
        for rank, row in addresses.items():
            if len(row) != buffers:
                raise InputError(f"found {len(row)} tensors of rank {rank}, expected {buffers}")
            cells[rank * buffers : (rank + 1) * buffers] = list(row)
        self._require(self._library.treadle_fusion_bind(self._handle, cells))
        self._kept = keep

    def run(
        self,
        *,
        seed: int = 0,
        step: int = 0,
        timeout: float = 0,
        order: int = 0,
        streams: Sequence[int] | None = None,
        launches: range = ALL,
    ) -> None:
        """Queue a run of all kernels: on `streams`, one for each rank, on GPUs; elsewhere it has ended on return.
        A run may be made in several calls of neighbouring `launches`, in order.

        `seed` and `step` of dropout. A wait of more than `timeout` seconds gives up, 0 is without limit; fibers need
        no clock for that, and `order` chooses who of them goes on when.
        """
        on = (ctypes.c_void_p * self.ranks)(*streams) if streams else None
        call = _Call(on, round(timeout * 1e9), seed, step, order, launches.start, launches.stop)
        self._require(self._library.treadle_fusion_run(self._handle, ctypes.byref(call)))

    def wait(self) -> None:
        """Wait for all runs. Raises CheckFailed naming every wait in vain; the session is of no more use then."""
        status = self._library.treadle_fusion_wait(self._handle)
        if status == 2:
            raise CheckFailed("the schedule does not end", tuple(self._stuck()))
        self._require(status)

    def counted(self, rank: int) -> Counted:
        """Of a rank of this process."""
        memory = ctypes.create_string_buffer(2 * LINE)
        aligned = -(-ctypes.addressof(memory) // LINE) * LINE
        self._require(self._library.treadle_fusion_counts(self._handle, rank, aligned))
        return Counted(*(ctypes.c_uint64 * len(fields(Counted))).from_address(aligned))

    def delays(self, seed: int) -> None:
        """Random pauses in all later runs of this process, 0 for none. Target process only."""
        self._library.treadle_delays(ctypes.c_uint64(seed))

    def close(self) -> None:
        if self._handle:
            self._library.treadle_fusion_close(self._handle)
            self._handle = ctypes.c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _stuck(self) -> list[str]:
        rows = (_Stuck * MOST_STUCK)()
        count = self._library.treadle_fusion_stuck(self._handle, rows, MOST_STUCK)
        if count < 0:
            self._require(1)
        return [self._line(row) for row in rows[:count]]

    def _line(self, row: Any) -> str:
        kernel = self._library.treadle_fusion_kernel(row.kernel).decode()
        whose = f" of rank {row.peer}" if row.peer >= 0 else ""
        return (
            f"rank {row.rank} {kernel} block {row.block}: waits for {AWAITED.get(row.awaited, 'something')}{whose}, "
            f"number {row.index}: found {row.found}, expected {row.expected}"
        )

    def _require(self, status: int) -> None:
        if status:
            raise InputError(self._library.treadle_fusion_message().decode(), where=self._name)


def device_count(library: Path) -> int:
    """GPUs that a CUDA library finds, 0 without a driver."""
    return int(_load(library).treadle_fusion_device_count())


@cache
def _load(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "treadle_fusion_message": (ctypes.c_char_p, []),
        "treadle_fusion_device_count": (integer, []),
        "treadle_fusion_handle_bytes": (integer, []),
        "treadle_fusion_ranks": (integer, []),
        "treadle_fusion_buffers": (integer, []),
        "treadle_fusion_kernel": (ctypes.c_char_p, [integer]),
        "treadle_fusion_open": (integer, [pointer, integer, integer, pointer]),
        "treadle_fusion_close": (None, [pointer]),
        "treadle_fusion_share": (integer, [pointer, integer, pointer]),
        "treadle_fusion_attach": (integer, [pointer, integer, ctypes.c_char_p]),
        "treadle_fusion_detach": (integer, [pointer]),
        "treadle_fusion_bind": (integer, [pointer, pointer]),
        "treadle_fusion_run": (integer, [pointer, pointer]),
        "treadle_fusion_wait": (integer, [pointer]),
        "treadle_fusion_stuck": (integer, [pointer, pointer, integer]),
        "treadle_fusion_counts": (integer, [pointer, integer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
