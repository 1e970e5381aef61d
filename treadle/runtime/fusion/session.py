"""A compiled schedule through ctypes: the structs and functions of treadle_fusion_driver.h."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from socket import socket

from treadle.planner.errors import CheckFailed, InputError
from treadle.runtime.native_session import INTEGER, POINTER, TEXT, NativeSession, Signatures

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


class Stuck(ctypes.Structure):
    """A wait that timed out: `kernel` by its number, `awaited` one of AWAITED, `index` of what is awaited, which should
    be `expected`."""

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


FUNCTIONS: Signatures = {
    "treadle_fusion_ranks": (INTEGER, []),
    "treadle_fusion_buffers": (INTEGER, []),
    "treadle_fusion_kernel": (TEXT, [INTEGER]),
    "treadle_fusion_open": (INTEGER, [POINTER, INTEGER, INTEGER, POINTER]),
    "treadle_fusion_bind": (INTEGER, [POINTER, POINTER]),
    "treadle_fusion_run": (INTEGER, [POINTER, POINTER]),
    "treadle_fusion_reach": (INTEGER, [POINTER, POINTER, POINTER, ctypes.c_uint64]),
    "treadle_fusion_stuck": (INTEGER, [POINTER, POINTER, INTEGER]),
    "treadle_fusion_counts": (INTEGER, [POINTER, INTEGER, POINTER]),
}


class FusionSession(NativeSession):
    """The arenas of those of `ranks` ranks that have a device in `devices`; others belong to other processes.

    `threads` of a block and `blocks` of a kernel that runs with any number: 0 for what suits the machine. Raises
    InputError where the driver refuses, for example more threadblocks than a GPU holds at once.
    """

    what = "the schedule"

    def __init__(
        self, library: Path, ranks: int, devices: Mapping[int, int], *, threads: int = 0, blocks: int = 0
    ) -> None:
        super().__init__(library, FUNCTIONS, library.name, ranks)
        self.ranks = ranks
        self._sockets: list[socket | None] = []
        numbers = [devices.get(rank, ELSEWHERE) for rank in range(ranks)]
        if self.library.treadle_fusion_ranks() != ranks:
            raise InputError(f"found {ranks} ranks, expected {self.library.treadle_fusion_ranks()} as compiled")
        opened = (ctypes.c_int32 * ranks)(*numbers)
        self._require(self.library.treadle_fusion_open(opened, threads, blocks, ctypes.byref(self._handle)))

    def reach(self, sockets: Sequence[socket | None], remote: Collection[int], latency_us: float = 0) -> None:
        """Reach the `remote` ranks, which are on other hosts, over sockets, one to every other rank of any host. All
        ranks of this host must be attached. The session closes the sockets. Target process only.

        Messages become visible `latency_us` after they are sent, where a lab stands for a slower network.
        """
        self._sockets = list(sockets)
        files = (ctypes.c_int32 * self.ranks)(*(-1 if each is None else each.fileno() for each in sockets))
        away = (ctypes.c_uint8 * self.ranks)(*(rank in remote for rank in range(self.ranks)))
        self._require(self.library.treadle_fusion_reach(self._handle, files, away, round(latency_us * 1000)))

    def close(self) -> None:
        super().close()
        for each in self._sockets:
            if each is not None:
                each.close()
        self._sockets = []

    def bind(self, addresses: Mapping[int, Sequence[int]], keep: object = None) -> None:
        """The tensors of all later runs, by rank and buffer; `keep` is what they lie in. All ranks must be attached."""
        buffers = self.library.treadle_fusion_buffers()
        cells = (ctypes.c_void_p * (self.ranks * buffers + 1))()
        for rank, row in addresses.items():
            if len(row) != buffers:
                raise InputError(f"found {len(row)} tensors of rank {rank}, expected {buffers}")
            cells[rank * buffers : (rank + 1) * buffers] = list(row)
        self._require(self.library.treadle_fusion_bind(self._handle, cells))
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
        no clock for that, and `order` is the seed of their order. Raises CheckFailed when an earlier run was given up.
        """
        self.require_all()
        on = (ctypes.c_void_p * self.ranks)(*streams) if streams else None
        call = _Call(on, round(timeout * 1e9), seed, step, order, launches.start, launches.stop)
        self._require(self.library.treadle_fusion_run(self._handle, ctypes.byref(call)))

    def wait(self) -> None:
        """Wait for all runs. Raises CheckFailed with the rank at fault and every wait here that failed, when one was
        given up; the session must not be used afterwards."""
        if not self._ended():
            self.require_all()

    def require_all(self) -> None:
        """Raises CheckFailed when a run was given up on any rank."""
        if (fault := self.fault()) is not None:
            raise CheckFailed(fault, self._lines())

    def _lines(self) -> tuple[str, ...]:
        return tuple(self._line(row) for row in self.stuck())

    def stuck(self) -> list[Stuck]:
        """The waits of this process's ranks that timed out."""
        return self._rows(self.library.treadle_fusion_stuck, Stuck, MOST_STUCK)

    def counted(self, rank: int) -> Counted:
        """The counts of a rank of this process."""
        memory = ctypes.create_string_buffer(2 * LINE)
        aligned = -(-ctypes.addressof(memory) // LINE) * LINE
        self._require(self.library.treadle_fusion_counts(self._handle, rank, aligned))
        return Counted(*(ctypes.c_uint64 * len(fields(Counted))).from_address(aligned))

    def delays(self, seed: int) -> None:
        """Random pauses in all later runs of this process, 0 for none. Target process only."""
        self.library.treadle_delays(ctypes.c_uint64(seed))

    def kernel(self, number: int) -> str:
        """The name of a kernel."""
        return str(self.library.treadle_fusion_kernel(number).decode())

    def _line(self, row: Stuck) -> str:
        kernel, awaited = self.kernel(row.kernel), AWAITED.get(row.awaited, "something")
        whose = f" of rank {row.peer}" if row.peer >= 0 else ""
        return (
            f"rank {row.rank} {kernel} block {row.block}: waits for {awaited}{whose}, "
            f"number {row.index}: found {row.found}, expected {row.expected}"
        )
