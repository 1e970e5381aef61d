"""What memory and cores of this machine do for a server's sums and optimizers, by its compiled kernels.

Arrays are larger than caches, and the least time of repeats counts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from treadle.kernels.server.library import Floats, KeyPart, server_kernels, settings_of
from treadle.planner.documents.scalars import MEBIBYTE
from treadle.planner.passes.server.problem import STATES, OptimizerName

ELEMENTS = 1 << 24
"""Elements of each array: 64 MiB."""
CHUNK = 8192
"""Elements of a chunk: 32 KiB."""
HOT = 1 << 16
"""Elements of an array that stays in a core's own cache: 256 KiB."""
REPEATS = 7
LINE = 16
"""Elements of a line of the cache."""
SETTINGS = {
    "lr": 1e-3,
    "momentum": 0.9,
    "weight_decay": 0.01,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "decoupled": 1.0,
}


class MemoryRates(NamedTuple):
    """Bytes per second. `add`: of the array that is added to another, which reads both and writes one; `change`: read
    and written together, by an array that is changed in place."""

    add_core: float
    add_all: float
    change_core: float
    change_all: float


class TallRate(NamedTuple):
    """Bytes of gradients per second of one core, which adds those of `workers` up in chunks of as many bytes."""

    chunk_bytes: int
    workers: int
    bypass: bool
    rate: float


def aligned(elements: int) -> Floats:
    """Ones, at a multiple of 64 bytes."""
    whole = np.ones(elements + LINE, np.float32)
    begin = -(whole.ctypes.data // whole.itemsize) % LINE
    return whole[begin : begin + elements]


def memory_rates(processors: Sequence[int], elements: int = ELEMENTS) -> MemoryRates:
    """Rates of the first processor, and of all of them together. Raises MissingBackendError without a compiler."""
    kernels, total, sent = server_kernels(), aligned(elements), aligned(elements)
    settings = settings_of({})

    def add(part: slice) -> None:
        kernels.add_chunks(total[part], [sent[part]], elements, keep=True)

    def change(part: slice) -> None:
        for each in (total[part], sent[part]):
            kernels.step_chunks("mean", settings, each, KeyPart(each, ()), KeyPart(each, ()), elements)

    def rate(work: Callable[[slice], None], chosen: Sequence[int]) -> float:
        return total.nbytes * 1e9 / least_ns(chosen, lambda place: work(_share(elements, place, len(chosen))))

    core = processors[:1]
    return MemoryRates(rate(add, core), rate(add, processors), 4 * rate(change, core), 4 * rate(change, processors))


def tall_rates(
    processor: int, sizes: Sequence[int], workers: int = 8, elements: int = ELEMENTS, repeats: int = REPEATS
) -> list[TallRate]:
    """Sums of all workers' gradients, chunk after chunk, cached and past the cache."""
    kernels, total = server_kernels(), aligned(elements)
    sent = [aligned(elements) for _ in range(workers)]

    def rate(size: int, bypass: bool) -> float:
        ns = least_ns([processor], lambda _: kernels.add_chunks(total, sent, size // 4, bypass=bypass), repeats)
        return workers * total.nbytes * 1e9 / ns

    return [TallRate(size, workers, bypass, rate(size, bypass)) for size in sizes for bypass in (False, True)]


def hot_add_us_per_MB(processor: int, elements: int = ELEMENTS) -> float:
    """To add a gradient that has just arrived and is in the core's cache."""
    kernels, total, sent = server_kernels(), aligned(elements), aligned(HOT)

    def work(_: int) -> None:
        for begin in range(0, elements, HOT):
            kernels.add_into(total[begin : begin + HOT], sent[: elements - begin], "float32", first=False)

    return _us_per_MB(least_ns([processor], work), total.nbytes)


def optimize_us_per_MB(
    processor: int, elements: int = ELEMENTS, optimizers: Iterable[OptimizerName] = tuple(STATES)
) -> dict[str, float]:
    """A step of each optimizer, on a core; weights and states come from memory."""
    return {each: _us_per_MB(_step_ns(processor, each, elements), 4 * elements) for each in optimizers}


def _step_ns(processor: int, optimizer: OptimizerName, elements: int) -> float:
    kernels, settings, total = server_kernels(), settings_of(SETTINGS), aligned(elements)
    old, new = (
        KeyPart(aligned(elements), tuple(aligned(elements) for _ in range(STATES[optimizer]))) for _ in range(2)
    )
    return least_ns([processor], lambda _: kernels.step_chunks(optimizer, settings, total, old, new, CHUNK))


def least_ns(processors: Sequence[int], work: Callable[[int], None], repeats: int = REPEATS) -> float:
    """`work(place)` by a thread on each processor at once: the least of repeats, in which the longest counts. Times are
    those that a thread ran, so that others that take its processor for a while are left out."""
    together = threading.Barrier(len(processors))
    times = [[0.0] * len(processors) for _ in range(repeats + 1)]

    def run(place: int) -> None:
        os.sched_setaffinity(0, {processors[place]})
        for each in times:
            together.wait()
            begin = time.thread_time_ns()
            work(place)
            each[place] = time.thread_time_ns() - begin

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(processors))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(max(each) for each in times[1:])


def _share(elements: int, place: int, count: int) -> slice:
    each = elements // count // LINE * LINE
    return slice(place * each, elements if place == count - 1 else (place + 1) * each)


def _us_per_MB(ns: float, size: int) -> float:
    return float(f"{ns / 1000 * MEBIBYTE / size:.4g}")
