"""The planned machine emulated in real time: its operators and copies take at least as long as they do there.

Copies in both directions at once each go on at `Machine.together` of their speed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from treadle.planner.passes.swap.problem import SwapMachine


class Emulation(NamedTuple):
    """A machine that is `pace` times as slow as the planned one, on which operators take `times_ns`."""

    machine: SwapMachine
    times_ns: Mapping[str, int]
    pace: float

    @contextmanager
    def computing(self, op: str) -> Iterator[None]:
        """Inside the block operator `op` runs; it ends when the machine would be done."""
        end = time.perf_counter() + self.times_ns[op] * self.pace / 1e9
        yield
        time.sleep(max(0.0, end - time.perf_counter()))


class EmulatedLink:
    """The link between host and device, which copies in both directions share."""

    def __init__(self, emulation: Emulation) -> None:
        self.machine, self.pace = emulation.machine, emulation.pace
        self._changed = threading.Condition()
        self._busy: set[str] = set()

    @contextmanager
    def copying(self, direction: str, count: int) -> Iterator[None]:
        """The block moves `count` bytes; it is entered when the planned machine would be done, so that what does not
        wait for the copy comes too early for it."""
        work = self.machine.in_ns(count) if direction == "in" else self.machine.out_ns(count)
        left = work * self.pace / 1e9
        slow, whole = self.machine.together
        with self._changed:
            self._busy.add(direction)
            self._changed.notify_all()
            while left > 0:
                speed = slow / whole if len(self._busy) > 1 else 1.0
                since = time.perf_counter()
                self._changed.wait(left / speed)
                left -= (time.perf_counter() - since) * speed
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(direction)
                self._changed.notify_all()
