"""Kernels of sparse gradients, against PyTorch's operators and a copy of the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.common import Row, Table, machine, progress
from treadle.kernels.sparse import PartitionMemory, coalesce, gather
from treadle.planner.passes.sparse.hashing import DEFAULT_SEEDS, ranged

ELEMENTS = 32 << 20
"""128 MiB, several times the last level of cache."""
PARTS = 8
DENSITIES = (0.01, 0.02, 0.03)
REPEATS, WARM = 9, 2
Clock = Callable[[], float]


def tables() -> Iterator[Table]:
    """Partitioning and adding up sparse gradients on the CPU, against PyTorch's operators and a memory copy."""
    threads = torch.get_num_threads()
    for count, clock, what in ((1, time.thread_time, "CPU time"), (threads, time.perf_counter, "time")):
        torch.set_num_threads(count)
        how = f"threads: {count}, ms of {what}, least of {REPEATS} runs in turns"
        notes = (f"{PARTS} parts; {machine()}",)
        yield Table(
            f"a gradient of {ELEMENTS >> 18} MiB to parts with values, {how}",
            [collected(width, density, clock) for width in (1, 16) for density in DENSITIES],
            (
                "hash, count: scan, partition and gather, by our two methods; of copy: over the copy of the gradient",
                "torch: nonzero, parts from a table, stable argsort by them, gather",
                *notes,
            ),
        )
        yield Table(
            f"indices to parts, {how}",
            [partitioned(density, clock) for density in DENSITIES],
            (
                "argsort: parts of the indices from a table, stable argsort by them, the indices in its order",
                "sort: of keys of part and index that are given",
                "by hash, by count: the time of argsort over ours; above 1 ours is faster",
                *notes,
            ),
        )
        yield Table(
            f"entries with repeats to sums, {how}",
            [coalesced(width, clock) for width in (1, 16)],
            ("unique: torch.unique, then index_add_; ratio: the time of coalesce() over ours", machine()),
        )


def collected(width: int, density: float, clock: Clock) -> Row:
    progress(f"gradient, width {width}, density {density}")
    values, units = _gradient(width, density)
    part_of, copied, memories = _parts(len(values)), torch.empty_like(values), _memories(len(units))

    def ours(memory: PartitionMemory) -> None:
        gather(values, memory.collect(values).indices)

    def torchs() -> None:
        found = (values[:, 0] if width == 1 else values.any(1)).nonzero().view(-1)
        order = part_of[found].argsort(stable=True)
        values[found[order]]

    copy, hashed, counted, peer, nonzero = in_turns(
        [
            lambda: copied.copy_(values),
            lambda: ours(memories["hash"]),
            lambda: ours(memories["count"]),
            torchs,
            values.nonzero,
        ],
        clock,
    )
    row: Row = {"width": width, "density": density, "units": len(units), "copy": copy}
    row |= {"hash": hashed, "of copy": hashed / copy, "count": counted, "count of copy": counted / copy}
    return row | {"torch": peer, "over hash": peer / hashed, "over count": peer / counted, "nonzero only": nonzero}


def partitioned(density: float, clock: Clock) -> Row:
    progress(f"indices, density {density}")
    _, units = _gradient(1, density)
    indices, memories = units.int(), _memories(len(units))
    part_of = _parts(ELEMENTS)
    keys = part_of[indices].long() << 32 | units
    hashed, counted, argsort, sort, unique = in_turns(
        [
            lambda: memories["hash"].partition(indices),
            lambda: memories["count"].partition(indices),
            lambda: indices[part_of[indices].argsort(stable=True)],
            keys.sort,
            indices.unique,
        ],
        clock,
    )
    row: Row = {"indices": len(units), "hash": hashed, "count": counted, "argsort": argsort, "sort": sort}
    return row | {"unique": unique, "by hash": argsort / hashed, "by count": argsort / counted}


def coalesced(width: int, clock: Clock) -> Row:
    progress(f"coalesce, width {width}")
    entries, units = 1 << 20, 4 << 20
    indices = (torch.rand(entries) ** 3 * units).long()
    values = torch.randn(entries, width)
    sparse = torch.sparse_coo_tensor(indices[None], values, (units, width), check_invariants=False)

    def added() -> None:
        found, inverse = indices.unique(return_inverse=True)
        torch.zeros(len(found), width).index_add_(0, inverse, values)

    ours, peer, unique = in_turns([lambda: coalesce(indices, values, units), sparse.coalesce, added], clock)
    row: Row = {"width": width, "entries": entries, "distinct": len(indices.unique()), "ours": ours}
    return row | {"coalesce()": peer, "ratio": peer / ours, "unique": unique, "ratio to unique": unique / ours}


def _gradient(width: int, density: float) -> tuple[Tensor, Tensor]:
    """Float32 [units, width] of ELEMENTS elements, and its units that are not zero, ascending."""
    values = torch.zeros(ELEMENTS // width, width)
    units = torch.randperm(len(values))[: int(density * len(values))].sort().values
    values[units] = torch.randn(len(units), width)
    return values, units


def _parts(units: int) -> Tensor:
    """The table int32 [units] of the part of each unit."""
    return torch.from_numpy(ranged(torch.arange(units).numpy(), DEFAULT_SEEDS[0], PARTS)).int()


def _memories(units: int) -> dict[str, PartitionMemory]:
    """At load 0.5, with a tenth of the slots beyond them, as published."""
    slots = 2 * units // PARTS
    return {
        method: PartitionMemory(PARTS, slots, slots // 10, DEFAULT_SEEDS, method=method) for method in ("hash", "count")
    }


def in_turns(works: list[Callable[[], object]], clock: Clock) -> list[float]:
    """The least time of each in ms; other processes slow all of them alike."""
    least = [float("inf")] * len(works)
    for turn in range(REPEATS + WARM):
        for number, work in enumerate(works):
            start = clock()
            work()
            if turn >= WARM:
                least[number] = min(least[number], (clock() - start) * 1e3)
    return least
