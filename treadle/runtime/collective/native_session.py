"""A compiled kernel and its driver, through ctypes: the structs of treadle_types.h and the functions of
treadle_driver.h."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.codegen.collective.cuda.tables import Tables
from treadle.codegen.collective.program import Place, Program
from treadle.planner.errors import CheckFailed, InputError

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


class Session:
    """Slots and counters of the ranks on `devices` (one entry per rank, -1 for ranks of other processes).

    Raises InputError where the driver refuses, for example more threadblocks than a GPU holds at once.
    """

    def __init__(
        self,
        library: Path,
        program: Program,
        table: Tables,
        *,
        devices: Sequence[int],
        threads: int,
        slots: int,
        slot_bytes: int,
    ) -> None:
        self._library, self._program, self._table = _load(library), program, table
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
        self._handle = ctypes.c_void_p()
        self._require(self._library.treadle_open(ctypes.byref(config), blocks, steps, ctypes.byref(self._handle)))

    def share(self, rank: int) -> bytes:
        """What another process needs to reach the arena of `rank`."""
        handle = ctypes.create_string_buffer(self._library.treadle_handle_bytes())
        self._require(self._library.treadle_share(self._handle, rank, handle))
        return handle.raw

    def attach(self, rank: int, handle: bytes) -> None:
        """Make the arena of a rank of another process reachable."""
        self._require(self._library.treadle_attach(self._handle, rank, handle))

    def detach(self) -> None:
        """Let go of the arenas of other processes; no launch is possible any more."""
        self._require(self._library.treadle_detach(self._handle))

    def fit(self) -> None:
        """Raises InputError when a GPU cannot hold all threadblocks at once, whatever the data type."""
        self._require(self._library.treadle_fit(self._handle))

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

        `keep` is what the buffers lie in; it is held until the next launch, as fibers only run in `wait`.
        """
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
        self._require(self._library.treadle_launch(self._handle, ctypes.byref(call)))

    def wait(self) -> None:
        """Wait for all launches. Raises CheckFailed naming every step that waited in vain."""
        status = self._library.treadle_wait(self._handle)
        if status == 2:
            raise CheckFailed(f"{self._program.name}: the program does not end", tuple(self._stuck()))
        self._require(status)

    def chunk_width(self, sizes: Sizes) -> int:
        """Bytes between neighbouring chunks."""
        return int(self._library.treadle_chunk_width(sizes.part, self._table.part_chunks, sizes.element))

    def close(self) -> None:
        if self._handle:
            self._library.treadle_close(self._handle)
            self._handle = ctypes.c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def _stuck(self) -> list[str]:
        most = len(self._table.blocks)
        numbers = (ctypes.c_int32 * (6 * most))()
        count = self._library.treadle_stuck(self._handle, numbers, most)
        if count < 0:
            self._require(1)
        blocks = {(block.rank, block.id): block for block in self._table.blocks}
        lines = []
        for start in range(0, 6 * count, 6):
            rank, number, step, reason, other, other_step = numbers[start : start + 6]
            block = blocks[rank, number]
            sends = reason == ROOM
            text = REASONS[reason].format(
                peer=block.send_rank if sends else block.recv_rank,
                peer_block=block.send_block if sends else block.recv_block,
                block=other,
                step=other_step,
            )
            lines.append(f"{self._spot(Place(rank, number, step))}: {text}")
        return lines

    def _spot(self, place: Place) -> str:
        """As the program says it; tables made of TACCL's copies have steps that it has not."""
        threadblocks = self._program.ranks[place.rank].threadblocks
        known = place.threadblock < len(threadblocks) and place.step < len(threadblocks[place.threadblock].steps)
        if known and not self._program.ranks[place.rank].copies:
            return self._program.spot(place)
        return f"gpu {place.rank} tb {place.threadblock} step {place.step}"

    def _require(self, status: int) -> None:
        if status:
            raise InputError(self._library.treadle_message().decode(), where=self._program.name)


def device_count(library: Path) -> int:
    """GPUs that a CUDA library finds, 0 without a driver."""
    return int(_load(library).treadle_device_count())


def _load(path: Path) -> Any:
    library = ctypes.CDLL(str(path))
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "treadle_message": (ctypes.c_char_p, []),
        "treadle_device_count": (integer, []),
        "treadle_handle_bytes": (integer, []),
        "treadle_chunk_width": (ctypes.c_int64, [ctypes.c_int64, integer, ctypes.c_int64]),
        "treadle_open": (integer, [pointer, pointer, pointer, pointer]),
        "treadle_close": (None, [pointer]),
        "treadle_share": (integer, [pointer, integer, pointer]),
        "treadle_attach": (integer, [pointer, integer, ctypes.c_char_p]),
        "treadle_detach": (integer, [pointer]),
        "treadle_fit": (integer, [pointer]),
        "treadle_launch": (integer, [pointer, pointer]),
        "treadle_wait": (integer, [pointer]),
        "treadle_stuck": (integer, [pointer, pointer, integer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
