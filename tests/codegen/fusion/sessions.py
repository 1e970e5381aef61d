"""Schedules on host fibers, in an order of blocks that a seed chooses, against the interpreter."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.codegen.fusion.lower import Lowered
from treadle.planner.machine.dtypes import Dtype
from treadle.planner.passes.fusion.evaluate import evaluate, held, states
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.runtime.native_build import Target, compile_library

NUMPY: dict[Dtype, Any] = {
    "f16": np.float16,
    "bf16": np.uint16,
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int32,
    "i64": np.int64,
    "bool": np.bool_,
}
AWAITED = ("nothing", "a message", "room", "a step", "blocks", "tiles", "partial sums")


class Call(ctypes.Structure):
    _fields_ = [
        ("streams", ctypes.c_void_p),
        *((name, ctypes.c_uint64) for name in ("timeout", "seed", "step", "order", "begin", "end")),
    ]


class Stuck(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rank", "kernel", "block", "awaited", "peer")),
        ("index", ctypes.c_int64),
        ("expected", ctypes.c_uint64),
        ("found", ctypes.c_uint64),
    ]


class Counts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64) for name in ("loaded", "stored", "loaded_bytes", "stored_bytes", "sent", "sent_on")
    ] + [("rest", ctypes.c_char * 80)]


@dataclass
class Session:
    """`tensors` by rank and buffer; guarded by a few elements behind each, which must stay as they are."""

    library: Any
    handle: ctypes.c_void_p
    lowered: Lowered
    tensors: list[list[NDArray[Any]]]
    memory: list[list[NDArray[Any]]]

    def bind(self) -> None:
        rows = [raw.ctypes.data for rank in self.memory for raw in rank]
        assert self.library.treadle_fusion_bind(self.handle, (ctypes.c_void_p * len(rows))(*rows)) == 0

    def run(self, *, order: int = 0, seed: int = 0, step: int = 0) -> list[str]:
        """Runs once; what blocks waited for in vain, nothing when all came to their end."""
        call = Call(None, TIMEOUT_NS, seed, step, order, 0, 1 << 32)
        assert self.library.treadle_fusion_run(self.handle, ctypes.byref(call)) == 0, (
            self.library.treadle_fusion_message()
        )
        if self.library.treadle_fusion_wait(self.handle) == 0:
            return []
        rows = (Stuck * 256)()
        count = self.library.treadle_fusion_stuck(self.handle, rows, 256)
        name = self.library.treadle_fusion_kernel
        return [
            f"{name(row.kernel).decode()} rank {row.rank} block {row.block}"
            f" waits for {AWAITED[row.awaited]} of {row.peer}"
            for row in rows[:count]
        ]

    def counts(self, rank: int) -> Counts:
        found = Counts()
        assert self.library.treadle_fusion_counts(self.handle, rank, ctypes.byref(found)) == 0
        return found

    def unharmed(self) -> bool:
        return all((each.view(np.uint8)[-GUARD:] == 0xA5).all() for rank in self.memory for each in rank)


GUARD = 64
TIMEOUT_NS = 60_000_000_000
"""Of processes; fibers know when they are stuck."""
COUNTING = ("-DTREADLE_COUNT",)


@contextmanager
def session(
    lowered: Lowered,
    flags: Sequence[str] = COUNTING,
    changed: Mapping[str, str] | None = None,
    target: Target = "fibers",
) -> Iterator[Session]:
    """A session of all ranks, with `changed` files in place of generated ones. Of target process its ranks are threads
    of this process."""
    files = {**lowered.texts, **(changed or {})}
    library = ctypes.CDLL(str(compile_library(files, "schedule.cu", target, list(flags))))
    library.treadle_fusion_message.restype = ctypes.c_char_p
    library.treadle_fusion_kernel.restype = ctypes.c_char_p
    ranks = lowered.bindings.ranks * lowered.bindings.groups
    handle = ctypes.c_void_p()
    devices = (ctypes.c_int32 * ranks)(*[0] * ranks)
    assert library.treadle_fusion_open(devices, 0, 0, ctypes.byref(handle)) == 0, library.treadle_fusion_message()
    memory, tensors = [], []
    for _ in range(ranks):
        rows, views = [], []
        for buffer in lowered.buffers:
            size = np.dtype(NUMPY[buffer.dtype]).itemsize
            raw = np.full(buffer.elements * size + GUARD, 0xA5, np.uint8)
            rows.append(raw)
            views.append(raw[: buffer.elements * size].view(NUMPY[buffer.dtype]))
        memory.append(rows)
        tensors.append(views)
    live = Session(library, handle, lowered, tensors, memory)
    live.bind()
    try:
        yield live
    finally:
        library.treadle_fusion_close(handle)


def stored(array: NDArray[Any], dtype: Dtype) -> NDArray[Any]:
    """As it lies in memory."""
    if dtype == "bf16":
        return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return np.ascontiguousarray(array, NUMPY[dtype])


def fill(live: Session, values: Mapping[str, NDArray[Any]]) -> None:
    """Every rank's part of the inputs, from evaluated values."""
    program, bindings = live.lowered.program, live.lowered.bindings
    for value in program.inputs:
        place = live.lowered.places[value.name]
        for world in range(bindings.ranks * bindings.groups):
            group, rank = divmod(world, bindings.ranks)
            mine = stored(held(value.type, bindings, values[value.name], rank, group), value.type.dtype).reshape(-1)
            live.tensors[world][place][: mine.size] = mine


def wrong(live: Session, values: Mapping[str, NDArray[Any]]) -> list[str]:
    """Outputs and states that differ from evaluated ones."""
    program, bindings = live.lowered.program, live.lowered.bindings
    left = states(program, values)
    expected = {name: (values[name], program.by_name[name].type) for name in program.outputs}
    expected |= {name: (array, program.by_name[name].type) for name, array in left.items()}
    found = []
    for name, (array, of) in expected.items():
        place = live.lowered.places[name]
        for world in range(bindings.ranks * bindings.groups):
            group, rank = divmod(world, bindings.ranks)
            whole = held(of, bindings, array, rank, group)
            if of.group.offset != group and bindings.groups > 1:
                continue
            if getattr(of.layout, "rank", rank) != rank:
                continue
            mine = stored(whole, of.dtype).reshape(-1)
            if live.tensors[world][place][: mine.size].tobytes() != mine.tobytes():
                got = live.tensors[world][place][: mine.size]
                bad = np.flatnonzero(got != mine)[:4]
                found.append(f"{name} at rank {world}: {got[bad]} at {bad}, expected {mine[bad]}")
    return found if live.unharmed() else [*found, "elements behind a tensor were overwritten"]


def integers(program: Program, bindings: Bindings, seed: int = 0, most: int = 4) -> dict[str, Any]:
    """Small whole numbers for every input: sums of them are exact in any order."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for value in program.inputs:
        shape = tuple(extent.value(bindings.values) for extent in value.type.shape)
        local = type(value.type.layout).__name__ in ("Local",)
        lead = (bindings.groups, bindings.ranks) if local else ()
        found[value.name] = rng.integers(-most, most + 1, (*lead, *shape)).astype(np.float32)
    return found


def compare(lowered: Lowered, given: Mapping[str, Any], orders: Sequence[int] = (0, 1), **options: int) -> list[str]:
    """Runs a schedule in several orders, each from the same state, and says what differs from the interpreter."""
    values = evaluate(lowered.program, lowered.bindings, given, **options)
    found = []
    with session(lowered) as live:
        for order in orders:
            fill(live, values)
            found += live.run(order=order, **options) or wrong(live, values)
    return found


def optimizer_scalars(given: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a step with scalars for which all of it is exact."""
    scalars = {"lr": 1.0, "b1": 0.5, "b2": 0.75, "t": 1.0, "eps": 1.0, "decay": 0.0}
    positive = {name: abs(given[name]) for name in ("v",) if name in given}
    return {**given, **{name: scalars[name] for name in scalars if name in given}, **positive}
