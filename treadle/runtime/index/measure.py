"""What a configuration takes on this machine: load all keys, then the operations, on one core (MAPLE, "Experimental
Setup")."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import thread_time_ns
from typing import NamedTuple

import numpy as np
import psutil

from treadle.planner.errors import CheckFailed
from treadle.planner.passes.index.configurations import IndexConfiguration, name_of_leaves
from treadle.planner.passes.index.operations import Workload
from treadle.planner.passes.index.problem import IndexMeasurement
from treadle.runtime.index.learned_index import LearnedIndex
from treadle.runtime.index.library import Library, load_library

SPARED = 1 << 28
"""Bytes of free memory that an index leaves to others."""


class IndexRun(NamedTuple):
    """One run: times, memory after the operations, and a sum over all answers."""

    load_ns: int
    windows_ns: tuple[int, ...]
    bytes: int
    answers: int

    @property
    def time_ns(self) -> int:
        """All operations."""
        return sum(self.windows_ns)


def measured(
    configuration: IndexConfiguration,
    workload: Workload,
    *,
    insert_share: float,
    windows: int = 16,
    repeats: int = 3,
    library: Library | None = None,
) -> IndexMeasurement:
    """The median run of several by the time of all operations, each on a new index, on one core.

    Raises LimitError where the index runs out of memory, CheckFailed where two runs answer differently. Options are
    those of `LearnedIndex`.
    """
    with pinned():
        runs = [one_run(configuration, workload, insert_share, windows, library=library) for _ in range(repeats)]
    if len({run.answers for run in runs}) > 1:
        raise CheckFailed(f"{name_of_leaves(configuration)} gave other answers when it ran once more")
    median = sorted(runs, key=lambda run: run.time_ns)[repeats // 2]
    return IndexMeasurement(load_ns=median.load_ns, windows_ns=median.windows_ns, bytes=median.bytes)


def one_run(
    configuration: IndexConfiguration,
    workload: Workload,
    insert_share: float,
    windows: int = 1,
    *,
    unique: bool = False,
    flags: int = 0,
    library: Library | None = None,
) -> IndexRun:
    """Load a new index and execute the operations, in at most `windows` equal parts.

    Times are those of this thread on its core, without what others do there. Raises LimitError where memory is short.
    """
    operations = workload.operations
    windows = min(windows, len(operations.ops))
    with (
        LearnedIndex(configuration, insert_share=insert_share, unique=unique, flags=flags, library=library) as index,
        _limited_memory(),
    ):
        began = thread_time_ns()
        index.load(workload.keys, workload.payloads)
        loaded = thread_time_ns()
        times, answers = index.run(operations, windows)
        return IndexRun(loaded - began, tuple(max(1, each) for each in times.tolist()), index.bytes, answers)


def loop_ns(workload: Workload, repeats: int = 3) -> int:
    """Least time in which the operations are read, one after the other, without an index, on one core."""
    library, operations = load_library(), workload.operations
    found = np.zeros(2, np.uint64)
    times = []
    with pinned():
        for _ in range(repeats):
            library.treadle_index_loop(
                *(each.ctypes.data for each in operations),
                len(operations.ops),
                found.ctypes.data,
                found[1:].ctypes.data,
            )
            times.append(int(found[0]))
    return min(times)


@contextmanager
def pinned() -> Iterator[None]:
    """This thread on one core, the last that it may use, which interrupts reach least; as before afterwards."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Allocations fail before this machine is out of memory, where Linux would end the process. What earlier runs have
    freed is given back first, so that all begin alike."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # glibc has it
        trim(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + max(SPARED, psutil.virtual_memory().available - SPARED)
    limits = [each for each in (soft, hard, most) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
