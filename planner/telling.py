"""Handing on the best of what a search finds, without spending much of its time on that."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Found = TypeVar("Found")


@dataclass
class Teller(Generic[Found]):
    """Passes finds on: the first at once, then the last of those that came while ten times as long went by as telling
    the one before took."""

    tell: Callable[[Found], None]
    waiting: Found | None = None
    rested_at: float = 0.0

    def offer(self, found: Found) -> None:
        """Each call's `found` is better than those before."""
        self.waiting = found
        self.tick()

    def tick(self) -> None:
        """Tell what waits, if it is time."""
        if self.waiting is not None and time.monotonic() >= self.rested_at:
            began, found, self.waiting = time.monotonic(), self.waiting, None
            self.tell(found)
            self.rested_at = time.monotonic() + 10 * (time.monotonic() - began)
