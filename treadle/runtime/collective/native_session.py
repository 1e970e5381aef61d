"""A compiled kernel and its driver, through ctypes: the structs of treadle_types.h and the functions of
treadle_driver.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from treadle.codegen.collective.cuda.tables import Tables
from treadle.codegen.collective.program import CollectiveProgram, Place
from treadle.planner.errors import CheckFailed
from treadle.runtime.native_session import INTEGER, POINTER, NativeSession, Signatures

REASONS = {
    1: "waits for a message of gpu {peer} tb {peer_block}",
    2: "waits for room on its connection to gpu {peer} tb {peer_block}",
    3: "waits for tb {block} step {step}",
    4: "waits for the end of tb {block}",
}
MESSAGE, ROOM = 1, 2


class _Step(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32)
        for name in (
            *("flow", "source_buffer", "source", "target_buffer", "target", "count"),
            *("wait_block", "wait_step", "awaited"),
        )
    ]


class _Block(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int32)
        for name in (
            *("rank", "id", "rank_blocks", "first_step", "steps", "recv_rank", "recv_block", "recv_slots"),
            *("send_rank", "send_block", "send_slots"),
        )
    ]


class _Stuck(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("rank", "id", "step", "reason", "wait_block", "wait_step")]


class _LocalRank(ctypes.Structure):
    _fields_ = [
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("averaged_bytes", ctypes.c_int64),
    ]


class _Config(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("ranks", "blocks", "steps", "threads", "slots", "max_count")),
        ("slot_bytes", ctypes.c_int64),
        ("devices", ctypes.POINTER(ctypes.c_int32)),
    ]


class _Call(ctypes.Structure):
    _fields_ = [
        ("local", ctypes.POINTER(_LocalRank)),
        ("streams", ctypes.POINTER(ctypes.c_void_p)),
        *((name, ctypes.c_int32) for name in ("part_chunks", "dtype", "operation")),
        ("part", ctypes.c_int64),
        ("element", ctypes.c_int64),
        ("timeout_ns", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
    ]


FUNCTIONS: Signatures = {
    "treadle_chunk_width": (ctypes.c_int64, [ctypes.c_int64, INTEGER, ctypes.c_int64]),
    "treadle_open": (INTEGER, [POINTER, POINTER, POINTER, POINTER]),
    "treadle_fit": (INTEGER, [POINTER, POINTER]),
    "treadle_launch": (INTEGER, [POINTER, POINTER]),
    "treadle_stuck": (INTEGER, [POINTER, POINTER, INTEGER]),
}


@dataclass(frozen=True)
class Buffers:
    """Addresses of one rank; the first `averaged_bytes` of the output are divided by the ranks at the end."""

    input: int = 0
    output: int = 0
    scratch: int = 0
    averaged_bytes: int = 0


@dataclass(frozen=True)
class Sizes:
    """Bytes of a part and of an element, and the codes of data type and operation in treadle_types.h."""

    part: int
    element: int
    dtype: int
    operation: int


class Session(NativeSession):
    """Slots and counters of the ranks on `devices` (one entry per rank, -1 for ranks of other processes). Raises
    InputError where the driver refuses, for example more threadblocks than a GPU holds at once."""

    def __init__(
        self,
        library: Path,
        program: CollectiveProgram,
        table: Tables,
        *,
        devices: Sequence[int],
        threads: int,
        slots: int,
        slot_bytes: int,
    ) -> None:
        super().__init__(library, FUNCTIONS, program.name, len(program.ranks))
        self._program, self._table, self.devices = program, table, tuple(devices)
        blocks = (_Block * (len(table.blocks) + 1))(*(_Block(*row) for row in table.blocks))
        steps = (_Step * (len(table.steps) + 1))(*(_Step(*row) for row in table.steps))
        config = _Config(
            ranks=len(program.ranks),
            blocks=len(table.blocks),
            steps=len(table.steps),
            threads=threads,
            slots=slots,
            max_count=table.max_count,
            slot_bytes=slot_bytes,
            devices=(ctypes.c_int32 * len(devices))(*devices),
        )
        self._require(self.library.treadle_open(ctypes.byref(config), blocks, steps, ctypes.byref(self._handle)))

    def fit(self) -> float:
        """The share of a GPU that all threadblocks take at once, of the data type that takes most. Raises InputError
        when a GPU cannot hold them."""
        share = ctypes.c_double()
        self._require(self.library.treadle_fit(self._handle, ctypes.byref(share)))
        return share.value

    def launch(
        self,
        buffers: Sequence[Buffers],
        sizes: Sizes,
        *,
        streams: Sequence[int] | None = None,
        timeout: float = 0,
        seed: int = 0,
        keep: object = None,
    ) -> None:
        """Start one call; `buffers` and `streams` by rank. On CUDA a wait of more than `timeout` seconds gives up.
        `keep` is what the buffers lie in; it is held until the next launch, as fibers only run in `wait`. Raises
        CheckFailed when an earlier launch was given up on any rank."""
        self.require_standing()
        self._kept = keep
        local = (_LocalRank * len(buffers))(
            *(_LocalRank(each.input, each.output, each.scratch, each.averaged_bytes) for each in buffers)
        )
        call = _Call(
            local=local,
            streams=(ctypes.c_void_p * len(buffers))(*(streams or [0] * len(buffers))),
            part_chunks=self._table.part_chunks,
            dtype=sizes.dtype,
            operation=sizes.operation,
            part=sizes.part,
            element=sizes.element,
            timeout_ns=round(timeout * 1e9),
            seed=seed,
        )
        self._require(self.library.treadle_launch(self._handle, ctypes.byref(call)))

    def wait(self) -> None:
        """Wait for all launches. Raises CheckFailed with the rank at fault and every step here that waited, when one
        was given up."""
        if not self._ended():
            raise CheckFailed(f"{self._name}: {self.fault()}", tuple(self._stuck()))

    def chunk_width(self, sizes: Sizes) -> int:
        """Bytes between neighbouring chunks."""
        return int(self.library.treadle_chunk_width(sizes.part, self._table.part_chunks, sizes.element))

    def _stuck(self) -> list[str]:
        blocks = {(block.rank, block.id): block for block in self._table.blocks}
        lines = []
        for row in self._rows(self.library.treadle_stuck, _Stuck, len(blocks)):
            block = blocks[row.rank, row.id]
            sends = row.reason == ROOM
            text = REASONS[row.reason].format(
                peer=block.send_rank if sends else block.recv_rank,
                peer_block=block.send_block if sends else block.recv_block,
                block=row.wait_block,
                step=row.wait_step,
            )
            lines.append(f"{self._spot(Place(row.rank, row.id, row.step))}: {text}")
        return lines

    def _spot(self, place: Place) -> str:
        """As the program says it; tables made of TACCL's copies have steps that it has not."""
        threadblocks = self._program.ranks[place.rank].threadblocks
        known = place.threadblock < len(threadblocks) and place.step < len(threadblocks[place.threadblock].steps)
        if known and not self._program.ranks[place.rank].copies:
            return self._program.spot(place)
        return f"gpu {place.rank} tb {place.threadblock} step {place.step}"
