"""How much work the solver may spend, and how it reports while it works."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from treadle.planner.documents.sketch import Sketch
from treadle.planner.errors import LimitError
from treadle.planner.search.clock import Clock
from treadle.planner.solver import Limit, Model, Progress, Solution, relative_gap, solve

KEPT, LAST = 0.15, 0.05
"""Shares of the wall-clock limit kept for what follows the search: pricing, and after that checking and writing."""
CHECKS, PRICED = 15, 40
"""Checking, proving and writing a plan take at most CHECKS times as long as checking its schedule once, its first
price at most PRICED times as long."""

OnProgress = Callable[[Progress], None]


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
class Standing:
    """Where the search for one plan is: its method, the best schedule of all methods so far and the bound over all."""

    method: str = ""
    best_ns: int | None = None
    bound_ns: int | None = None


@dataclass
class Effort:
    """Runs models under the limits of one plan, and remembers what cut them short."""

    limits: Limits = Limits()
    on_progress: OnProgress | None = None
    clock: Clock = field(default_factory=Clock)
    """Ends with `limits.time_s` from when it began, or before."""
    begun_s: float = -1.0
    """When this plan was begun, after the clock was."""
    finish_s: float = 0.0
    """What it takes to check and to write a plan, as far as that was seen."""
    limit_fired: bool = False
    reached: Standing = field(default_factory=Standing)
    """Shared by the efforts of all methods."""
    beat_ns: int | None = None
    """The time of a schedule that is there already: what takes as long or longer is not kept."""

    def require_sooner(self, time_ns: int, what: str) -> None:
        """Raises LimitError where `what`, which takes at least `time_ns`, cannot be kept."""
        if self.beat_ns is not None and time_ns >= self.beat_ns:
            raise LimitError(f"{what} {time_ns / 1000:,.3f} us, no less than the best plan so far")

    def __post_init__(self) -> None:
        if self.begun_s < 0:
            self.begun_s = max(0.0, self.clock.elapsed_s)

    @property
    def stop(self) -> threading.Event:
        """Set by Ctrl-C, inside a solve or between two."""
        return self.clock.stop

    @property
    def interrupted(self) -> bool:
        return self.stop.is_set()

    def checked(self, took_s: float) -> None:
        """Learn from how long it took to check a schedule."""
        self.finish_s = max(self.finish_s, CHECKS * took_s)

    def can_price(self, check_s: float) -> bool:
        """Whether there is time for a first price, which has no clock of its own, of a schedule that was checked in
        `check_s`."""
        fits = not self.overdue() and self.clock.elapsed_s + PRICED * check_s <= self._end(1 - LAST)
        self.limit_fired |= not (fits or self.interrupted)
        return fits

    def exhausted(self) -> bool:
        """Whether to take the best so far: after Ctrl-C, or when the search's part of the limit has passed."""
        return self._over(1 - KEPT) or self.limit_fired

    def overdue(self) -> bool:
        """Whether nothing but checking and writing may follow."""
        return self._over(1 - LAST)

    def report(self, stage: str = "") -> None:
        """Report what is reached, while the method is at `stage`. What solvers report is of one stage and in its own
        units."""
        if self.on_progress is not None:
            best, bound, method = self.reached.best_ns, self.reached.bound_ns, self.reached.method
            work = ", ".join(dict.fromkeys(text for text in (method, stage) if text))
            self.on_progress(Progress(best, bound, relative_gap(best, bound), self.clock.elapsed_s, work))

    def _over(self, part: float) -> bool:
        late = self.clock.elapsed_s > self._end(part)
        self.limit_fired |= late
        return self.interrupted or late

    def _end(self, part: float) -> float:
        """When that part of the limit ends, in seconds from its start; a plan is finished in the rest, which is at most
        half of the limit."""
        limit = min(self.clock.whole_s, inf if self.limits.time_s is None else self.limits.time_s)
        if limit == inf:
            return inf
        kept_s = (1 - part) * (limit - self.begun_s)
        return limit - max(kept_s, min((limit - self.begun_s) / 2, self.finish_s))

    def solve(self, model: Model, work: float) -> Solution:
        """`model` on CP-SAT with at most `work`. Raises LimitError when interrupted before any solution."""
        if self.interrupted:
            raise LimitError(f"{model.name}: interrupted before it began")
        end = self._end(1 - KEPT)
        solution = solve(
            model,
            backend="cp_sat",
            deterministic_limit=work,
            time_limit_s=None if end == inf else max(0.05, end - self.clock.elapsed_s),
            on_progress=lambda progress: self.report(model.name),
            stop=self.stop,
        )
        self.limit_fired |= solution.limit_fired is Limit.TIME
        return solution
