"""The clock of one command: its time limit and Ctrl-C. All work of a pass checks it.

A limit counts from the start of the process where the caller knows that, so that imports and the reading of inputs
count. What a limit or Ctrl-C ended is recorded in the plan; nothing else of a plan depends on time.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from treadle.planner.solver.interrupt import stop_on_signals

Expired = Callable[[], bool]
"""Whether the time of some work has passed."""


def never() -> bool:
    """No limit."""
    return False


@dataclass(frozen=True)
class Clock:
    """`ends` and `began` are on the clock `now`, in seconds; without a limit `ends` is infinite. `stop` is set by
    Ctrl-C and SIGTERM while `listening`. `limit_s` is the limit of the whole command."""

    ends: float = math.inf
    began: float = field(default_factory=time.monotonic)
    now: Callable[[], float] = time.monotonic
    stop: threading.Event = field(default_factory=threading.Event)
    limit_s: float | None = None

    @classmethod
    def of(cls, limit_s: float | None, began: float | None = None) -> Clock:
        """A limit in seconds, None for no limit, from `began` on time.monotonic's clock or from now."""
        began = time.monotonic() if began is None else began
        return cls(math.inf if limit_s is None else began + limit_s, began, limit_s=limit_s)

    @property
    def whole_s(self) -> float:
        """All of its time, infinite without a limit."""
        return self.ends - self.began

    @property
    def elapsed_s(self) -> float:
        return self.now() - self.began

    @property
    def left_s(self) -> float:
        """Seconds to the limit, negative after it."""
        return self.ends - self.now()

    def late(self) -> bool:
        """Whether the limit has passed."""
        return self.left_s <= 0

    def over(self) -> bool:
        """Whether no more work may begin: after the limit or Ctrl-C."""
        return self.stop.is_set() or self.late()

    def until(self, ends: float) -> Clock:
        """The same, but ending at `ends` at the latest."""
        return replace(self, ends=min(self.ends, ends))

    def share(self, parts: float) -> Clock:
        """The same for one of `parts` equal parts of the time that is left."""
        return self.until(self.now() + max(0.0, self.left_s) / parts)

    def paused(self, seconds: float) -> Clock:
        """The same as if it had stood still for `seconds`."""
        return replace(self, began=self.began + seconds, ends=self.ends + seconds)

    @contextmanager
    def listening(self) -> Iterator[Clock]:
        """Ctrl-C and SIGTERM set `stop` inside; a second Ctrl-C does what it did before."""
        with stop_on_signals(self.stop):
            yield self
