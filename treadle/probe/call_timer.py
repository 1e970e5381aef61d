"""Times of calls, of this process or of all that work at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

import torch
from torch import distributed

PASSES = 4
"""Rounds over all that is measured, of which the fastest counts: a shared machine can be slow for seconds."""
SAMPLES, LEAST_SAMPLES = 15, 3
SAMPLE_SECONDS, MOST_CALLS = 0.001, 100
BUSY_SECONDS, BUSY_SIZE, OUTLASTING = 0.01, 256, 2.5
"""How long calls take that are made during a computation, the size of its matrices, and how many times as long as the
calls it takes."""
SERIES_SECONDS = 0.15
"""A call whose samples take longer has fewer of them."""


@dataclass(frozen=True)
class CallTimer:
    """How calls are timed: on `device`, and where `is_together` by all processes of the default group at once, of which
    the slowest counts."""

    device: torch.device
    is_together: bool

    def ns(self, call: Callable[[], object]) -> float:
        """The median over samples of processes that work together, whose contention counts; of one alone the least, as
        other work on the machine does not. A first call does not count. All processes call it, and all have the same
        result."""
        call()
        (once,) = self._slowest([self._sample(call, 1)])
        calls = max(1, min(MOST_CALLS, int(SAMPLE_SECONDS / once)))
        samples = max(LEAST_SAMPLES, min(SAMPLES, int(SERIES_SECONDS / (once * calls))))
        times = self._slowest([self._sample(call, calls) for _ in range(samples)])
        return 1e9 * (median(times) if self.is_together else min(times))

    def delay_ns(self, call: Callable[[], object]) -> float:
        """How much longer a computation on the CPU takes while another thread makes a call, which ends before it, the
        median over samples: about 0 where there are cores to spare. The mean of all processes, at 0 or above."""
        (once,) = self._slowest([self._sample(call, 1)])
        calls = max(1, min(MOST_CALLS, int(BUSY_SECONDS / once)))
        matrix = torch.ones(BUSY_SIZE, BUSY_SIZE)
        products = round(OUTLASTING * calls * once / self._sample(lambda: matrix @ matrix, MOST_CALLS))

        def compute() -> None:
            for _ in range(products):
                matrix @ matrix

        with ThreadPoolExecutor(1) as other:

            def both() -> None:
                done = other.submit(lambda: [call() for _ in range(calls)])
                compute()
                done.result()

            more = median(self._sample(both, 1) - self._sample(compute, 1) for _ in range(SAMPLES))
        delay = torch.tensor(max(0.0, 1e9 * more / calls), dtype=torch.float64)
        if self.is_together:
            distributed.all_reduce(delay)
        return float(delay) / (distributed.get_world_size() if self.is_together else 1)

    def _sample(self, call: Callable[[], object], calls: int) -> float:
        """Seconds of a call. It has ended when the device has."""
        if self.is_together:
            distributed.barrier()
        self._wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        self._wait()
        return (time.perf_counter() - start) / calls

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _slowest(self, seconds: Sequence[float]) -> list[float]:
        found = torch.tensor(seconds, dtype=torch.float64)
        if self.is_together:
            distributed.all_reduce(found, op=distributed.ReduceOp.MAX)
        return [max(1e-9, float(each)) for each in found]
