"""Handing on the best of what a search finds, without spending much of its time on that."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Found = TypeVar("Found")
AGAIN = 1.5
"""Telling takes at most so many times as long as it did before."""


@dataclass
class Teller(Generic[Found]):
    """Passes finds on: the first at once, then the last of those that came while ten times as long went by as telling
    the one before took. None is told that would last beyond `ends` on the clock `now`, for the last find, told by the
    caller, takes as long. `took_s` is what telling takes; a guess, where one is given, counts until one was told."""

    tell: Callable[[Found], None]
    waiting: Found | None = None
    rested_at: float = 0.0
    ends: float = math.inf
    took_s: float = 0.0
    now: Callable[[], float] = time.monotonic
    told: bool = False

    def offer(self, found: Found) -> None:
        """Each call's `found` is better than those before."""
        self.waiting = found
        self.tick()

    @property
    def stops(self) -> float:
        """When a search has to end so that its last find is told by the end, as long as that took so far."""
        return self.ends - AGAIN * self.took_s

    def tick(self) -> None:
        """Tell what waits, if it is time."""
        began = self.now()
        early = began < self.stops - self.took_s if self.told else began < self.ends
        if self.waiting is not None and self.rested_at <= began and early:
            found, self.waiting = self.waiting, None
            self.tell(found)
            took_s = self.now() - began
            self.took_s = max(self.took_s, took_s) if self.told else took_s
            self.told, self.rested_at = True, began + 11 * took_s
