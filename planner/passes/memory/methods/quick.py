"""Good plans in seconds at any size. Where blocks repeat, as the layers of a transformer do, they are solved once and
composed (`compose.py`). Elsewhere two ways lead down to the budget; then whatever fits is kept again.

* From segments: the forward pass keeps what crosses between equal shares of its bytes (`heuristics.crossings`), and
  the number of shares that fits and costs least time is taken, or else the one that is least over.
* From what store-all keeps: evicting least time per byte first (`polish.evict`). It is given up as soon as it costs
  more than the segments: where much has to go, single steps lead into chains of recomputation, and take minutes.

Where one of them does not get there, the plan of least peak is where it begins instead (`least_peak.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from treadle.planner.passes.memory.bound import least_time
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, store_all
from treadle.planner.passes.memory.methods.compose import STRETCH, compose
from treadle.planner.passes.memory.methods.heuristics import crossings
from treadle.planner.passes.memory.methods.least_peak import least_peak_schedule
from treadle.planner.passes.memory.methods.lifetimes import Lifetimes
from treadle.planner.passes.memory.methods.local_search import evict, refill
from treadle.planner.passes.memory.methods.unfolding import unfold
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.simulate import simulate

EVICTING, FILLING = 400_000, 100_000
"""`Lives.work` on each way at most, some ten seconds each: none goes on for ever."""
RUNS = 6_000
"""A plan of least peak with more runs than this is left as it is: filling it takes minutes."""
REPEATED, LEVELS, ROUNDS, GROUP = 3, 6, 6, 2
"""Segments are composed at this effort where on average so many are alike."""
WORTH = 2
"""What brings segments within the budget may make them so many times slower."""


def solve_quick(
    problem: MemoryProblem, on_better: Callable[[RecomputeSchedule], None] = lambda schedule: None
) -> RecomputeSchedule | None:
    """The fastest plan found within the budget; None where none was. `on_better` hears of plans on the way."""
    room = problem.budget_bytes - problem.base_bytes
    found: list[Lifetimes] = []
    whole = store_all(problem)
    kept = simulate(problem, lower(problem, whole))
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
        if simulate(problem, lower(problem, least)).peak_bytes <= problem.budget_bytes:
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
    """The fastest plan of those that keep crossings and fit, or the one that is least over the budget."""
    backward = store_all(problem).backward
    plans = [unfold(problem, kept, backward, len(problem.bwd)) for kept in dict.fromkeys(crossings(problem))]

    def rank(plan: RecomputeSchedule) -> tuple[int, int]:
        result = simulate(problem, lower(problem, plan))
        return max(0, result.peak_bytes - problem.budget_bytes), result.time_ns

    return min(plans, key=rank)
