"""Schedules on host fibers, in an order of blocks that a seed chooses, against the interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.codegen.fusion.lower import Lowered
from treadle.planner.errors import CheckFailed
from treadle.planner.machine.dtypes import Dtype
from treadle.planner.passes.fusion.evaluate import evaluate, held, states
from treadle.planner.passes.fusion.program import Bindings, Program
from treadle.runtime.fusion.session import HERE, Counted
from treadle.runtime.fusion.session import FusionSession as Native
from treadle.runtime.fusion.tensors import NUMPY
from treadle.runtime.native_build import Target, compile_library


@dataclass
class Session:
    """All ranks, with `tensors` by rank and buffer; guarded by a few elements behind each in `memory`, which must stay
    as they are."""

    native: Native
    lowered: Lowered
    tensors: list[list[NDArray[Any]]]
    memory: list[list[NDArray[Any]]]

    def bind(self, rows: Sequence[Sequence[int]]) -> None:
        """Addresses by rank and buffer."""
        self.native.bind(dict(enumerate(rows)))

    def run(self, *, order: int = 0, seed: int = 0, step: int = 0) -> list[str]:
        """Runs once; what blocks still wait for, nothing if all finished."""
        try:
            self.native.run(order=order, seed=seed, step=step, timeout=TIMEOUT)
            self.native.wait()
        except CheckFailed as error:
            return list(error.findings)
        return []

    def counts(self, rank: int) -> Counted:
        return self.native.counted(rank)

    def unharmed(self) -> bool:
        return all((each.view(np.uint8)[-GUARD:] == 0xA5).all() for rank in self.memory for each in rank)


GUARD = 64
TIMEOUT = 60.0
"""Limit of a run on processes, seconds; fibers detect a deadlock."""
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
    path = compile_library(files, "schedule.cu", target, list(flags))
    ranks = lowered.bindings.ranks * lowered.bindings.groups
    native = Native(path, ranks, dict.fromkeys(range(ranks), HERE))
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
    live = Session(native, lowered, tensors, memory)
    live.bind([[raw.ctypes.data for raw in rows] for rows in memory])
    try:
        yield live
    finally:
        native.close()


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
