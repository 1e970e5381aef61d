"""The best solution of a search so far, offered upwards without spending much of the search's time on that."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Solution = TypeVar("Solution")
MARGIN = 1.5
"""Publishing takes at most this many times as long as it took before."""
REST = 10
"""Times as long as publishing took, between two solutions."""


@dataclass
class Incumbent(Generic[Solution]):
    """Publishes the first solution at once, then the latest one whenever REST times as long has passed as publishing
    the one before took. None is published if that would end after `ends` on the clock `now`, for the final solution,
    which the caller publishes, takes as long. `cost_s` is what publishing takes; a guess counts until the first one."""

    publish: Callable[[Solution], None]
    pending: Solution | None = None
    rested_at: float = 0.0
    ends: float = math.inf
    cost_s: float = 0.0
    now: Callable[[], float] = time.monotonic
    published: bool = False

    def offer(self, solution: Solution) -> None:
        """Each `solution` is better than those before."""
        self.pending = solution
        self.poll()

    @property
    def search_ends(self) -> float:
        """When a search has to end so that its final solution is published by `ends`."""
        return self.ends - MARGIN * self.cost_s

    def poll(self) -> None:
        """Publish the pending solution if it is time."""
        began = self.now()
        early = began < self.search_ends - self.cost_s if self.published else began < self.ends
        if self.pending is not None and self.rested_at <= began and early:
            solution, self.pending = self.pending, None
            self.publish(solution)
            cost_s = self.now() - began
            self.cost_s = max(self.cost_s, cost_s) if self.published else cost_s
            self.published, self.rested_at = True, began + (1 + REST) * cost_s
