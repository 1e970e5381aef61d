"""The memory pass with a hard limit, for traces of any size: what it has found by then.

Small problems are planned here, in moments. Others go to processes that end when the limit comes, whatever they are
doing (treadle.planner.passes.memory.search.race): the quick method in parallel with the one for repeated blocks,
and, if time is left, windows from the better of the two. Intermediate plans count. The methods have no clock: if
evicting does not reach the budget, the quick one turns to the plan of least peak, which can run every operator a
hundred times. Such plans are left out here: they are slow to find and to plan copies for, and never the best.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress

from treadle.planner.passes.memory.bound import least_bytes
from treadle.planner.passes.memory.lower import RecomputeSchedule, lower, prune
from treadle.planner.passes.memory.methods.quick import solve_quick
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.search.attempts import Answer, Attempt, MemoryOptions
from treadle.planner.passes.memory.search.race import race
from treadle.planner.passes.memory.search.rounds import FULL
from treadle.planner.passes.memory.simulate import simulate

BRIEF = ((Attempt("heuristic"), Attempt("segments")),)
LONG = (*BRIEF, (Attempt("windows"),), (Attempt("windows", 2),))
MOST_RUNS = 4
"""Plans of more runs than this for each node of the forward pass are left out."""
Ended = Callable[[], bool]


def is_small(problem: MemoryProblem) -> bool:
    """Whether the memory pass answers in moments."""
    return len(problem.fwd) * len(problem.bwd) <= FULL


def schedule_within(
    problem: MemoryProblem, ended: Ended, rounds: tuple[tuple[Attempt, ...], ...] = BRIEF
) -> RecomputeSchedule | None:
    """The fastest schedule found within the budget until `ended` says yes; None if there is none by then.

    Equal inputs give equal schedules if all jobs finished.
    """
    if problem.budget_bytes < least_bytes(problem):
        return None
    if is_small(problem):
        found = solve_quick(problem)
        return found if found is not None and _is_sane(problem, found) else None
    best: tuple[int, int, RecomputeSchedule] | None = None

    def better(place: int, schedule: RecomputeSchedule) -> None:
        nonlocal best
        if not _is_sane(problem, schedule):
            return
        pruned = prune(problem, schedule)
        result = simulate(problem, lower(problem, pruned))
        fits = result.peak_bytes <= problem.budget_bytes
        if fits and (best is None or (result.time_ns, place) < best[:2]):
            best = (result.time_ns, place, pruned)

    def answered(place: int, answer: Answer) -> None:
        if answer.schedule is not None:
            better(place, answer.schedule)

    def tick() -> None:
        if ended():
            raise _Ended

    with suppress(_Ended):
        for jobs in rounds:
            tick()
            race(
                jobs,
                problem,
                None if best is None else best[2],
                MemoryOptions(time_limit_s=None),
                stop=threading.Event(),
                deadline=math.inf,
                on_better=better,
                on_bound=lambda _: None,
                on_answer=answered,
                over=lambda: False,
                tick=tick,
            )
    return None if best is None else best[2]


def _is_sane(problem: MemoryProblem, schedule: RecomputeSchedule) -> bool:
    return sum(map(len, schedule.runs)) <= MOST_RUNS * len(problem.fwd)


class _Ended(Exception):
    """Ends a race at once: the results of its jobs so far have been reported."""
