"""Good plans in seconds at any size. Repeated blocks, such as the layers of a transformer, are solved once and composed
(`compose.py`). Otherwise two plans are brought within the budget and then keep whatever fits:

* Segments: the forward pass keeps what crosses between equal shares of its bytes (`heuristics.crossings`), with the
  number of shares that fits and costs least time, or else exceeds the budget least.
* Store-all, with evictions of least time per byte first (`local_search.evict`), which end as soon as they cost more
  than the segments: where much has to be evicted, single steps lead to chains of recomputation and take minutes.

Where one of them fails, the plan of least peak (`least_peak.py`) takes its place.
"""

from __future__ import annotations

from collections.abc import Callable

from treadle.planner.passes.memory.bound import least_time
from treadle.planner.passes.memory.lower import RecomputeSchedule, store_all
from treadle.planner.passes.memory.methods.compose import STRETCH, compose
from treadle.planner.passes.memory.methods.heuristics import crossings
from treadle.planner.passes.memory.methods.least_peak import least_peak_schedule
from treadle.planner.passes.memory.methods.lifetimes import Lifetimes
from treadle.planner.passes.memory.methods.local_search import evict, refill
from treadle.planner.passes.memory.methods.unfolding import unfold
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.simulate import simulated

EVICTING, FILLING = 400_000, 100_000
"""Limits of `Lifetimes.work` for each plan, some ten seconds each."""
RUNS = 6_000
"""Runs of a plan of least peak that is refilled, at most: more take minutes."""
REPEATED, LEVELS, ROUNDS, GROUP = 3, 6, 6, 2
"""Segments alike on average from which they are composed, and the effort for that."""
WORTH = 2
"""Factor by which evictions may slow segments down."""


def solve_quick(
    problem: MemoryProblem, on_better: Callable[[RecomputeSchedule], None] = lambda schedule: None
) -> RecomputeSchedule | None:
    """The fastest plan found within the budget, if any. `on_better` is called with plans as they are found."""
    room = problem.budget_bytes - problem.base_bytes
    found: list[Lifetimes] = []
    whole = store_all(problem)
    kept = simulated(problem, whole)
    if kept.time_ns == least_time(problem) and kept.peak_bytes <= problem.budget_bytes:
        return whole
    composed = compose(problem, LEVELS, ROUNDS, GROUP, repeated=REPEATED, stretch=STRETCH)
    if composed is not None:
        lives = Lifetimes(problem, composed[0])
        if evict(lives, room, WORTH * lives.time_ns, EVICTING):
            return _filled(lives, room, on_better).schedule()
    lives = Lifetimes(problem, _segments(problem))
    most_ns = None
    if evict(lives, room, WORTH * lives.time_ns, EVICTING):
        most_ns = lives.time_ns
        found.append(_filled(lives, room, on_better))
    lives = Lifetimes(problem, whole)
    if evict(lives, room, most_ns, EVICTING):
        found.append(_filled(lives, room, on_better))
    if len(found) < 2:
        least = least_peak_schedule(problem)
        if simulated(problem, least).peak_bytes <= problem.budget_bytes:
            if sum(map(len, least.runs)) <= RUNS:
                found.append(_filled(Lifetimes(problem, least), room, on_better))
            elif not found:
                return least
    return min(found, key=lambda lives: lives.time_ns).schedule() if found else None


def _filled(lives: Lifetimes, room: int, on_better: Callable[[RecomputeSchedule], None]) -> Lifetimes:
    on_better(lives.schedule())
    refill(lives, room, most_work=lives.work + FILLING)
    return lives


def _segments(problem: MemoryProblem) -> RecomputeSchedule:
    """The fastest fitting plan of those that keep crossings, or the one that exceeds the budget least."""
    backward = store_all(problem).backward
    plans = [unfold(problem, kept, backward, len(problem.bwd)) for kept in dict.fromkeys(crossings(problem))]

    def rank(plan: RecomputeSchedule) -> tuple[int, int]:
        result = simulated(problem, plan)
        return max(0, result.peak_bytes - problem.budget_bytes), result.time_ns

    return min(plans, key=rank)
