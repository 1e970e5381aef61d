"""How much work the solver may spend, and how it reports while it works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from planner.errors import LimitError
from planner.sketch import Sketch
from planner.solver import Limit, Model, Progress, Solution, solve

KEPT, LAST = 0.15, 0.05
"""So much of the wall-clock limit is kept for what follows the search: pricing, and after that checking and writing."""

OnProgress = Callable[[str, Progress], None]


@dataclass(frozen=True)
class Limits:
    """Deterministic work (about a second each on one core) for routing and for scheduling; `time_s` is the wall-clock
    safety net over everything, and a plan it touched may differ on another machine."""

    routing: float = 60.0
    scheduling: float = 30.0
    time_s: float | None = None

    def within(self, sketch: Sketch) -> Limits:
        """These limits, with those that the sketch states in their place."""
        own = sketch.time_limit_s
        return replace(self, routing=own.routing or self.routing, scheduling=own.scheduling or self.scheduling)


@dataclass
class Effort:
    """Runs models under the limits of one plan, and remembers what cut them short."""

    limits: Limits = Limits()
    on_progress: OnProgress | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    """Set by Ctrl-C, inside a solve or between two."""
    started: float = field(default_factory=time.monotonic)
    limit_fired: bool = False
    beat_ns: int | None = None
    """The time of a schedule that is there already: what takes as long or longer is of no use."""

    def require_sooner(self, time_ns: int, what: str) -> None:
        """Raises LimitError where `what`, which takes at least `time_ns`, cannot be of use."""
        if self.beat_ns is not None and time_ns >= self.beat_ns:
            raise LimitError(f"{what} {time_ns / 1000:,.3f} us, no less than the best plan so far")

    @property
    def interrupted(self) -> bool:
        return self.stop.is_set()

    def exhausted(self) -> bool:
        """Whether it is time to settle for the best so far: after Ctrl-C, or when the search's part of the wall-clock
        limit is over."""
        return self._over(1 - KEPT) or self.limit_fired

    def overdue(self) -> bool:
        """Whether nothing but checking and writing may follow."""
        return self._over(1 - LAST)

    def _over(self, part: float) -> bool:
        late = self.limits.time_s is not None and time.monotonic() - self.started > part * self.limits.time_s
        self.limit_fired |= late
        return self.interrupted or late

    def solve(self, model: Model, work: float) -> Solution:
        """`model` on CP-SAT with at most `work`. Raises LimitError when interrupted before any solution."""
        if self.interrupted:
            raise LimitError(f"{model.name}: interrupted before it began")
        net = self.limits.time_s
        report = self.on_progress
        try:
            solution = solve(
                model,
                backend="cp_sat",
                deterministic_limit=work,
                time_limit_s=None if net is None else max(0.05, (1 - KEPT) * net - (time.monotonic() - self.started)),
                on_progress=None if report is None else lambda progress: report(model.name, progress),
            )
        except LimitError:
            self.stop.set()
            raise
        self.limit_fired |= solution.limit_fired is Limit.TIME
        if solution.interrupted:
            self.stop.set()
        return solution
