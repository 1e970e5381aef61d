"""Plans for large problems: recompute only where windows of stages begin, then improve a few stages at a time.

A first plan comes from the relaxation (`keeping.py`). With windows of several stages the restricted 0-1
program (`restricted.py`) is small: whatever a window reads again is made in its first stage and stays until
its last use. Finer and finer windows trade size for quality. A large neighbourhood search goes on from the best plan
("Using Constraint Programming and Local Search Methods to Solve Vehicle Routing Problems", P. Shaw): the runs of the
plan may stay or go, and one range of stages may run anything. Which implementations backward nodes have is first what
the relaxation chooses; later they are free where the stages are. Every program contains the plan it starts from, so no
step makes it worse, and every solution fits the budget: its rows are those of MONeT (equations 4.1 to 4.15).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.errors import LimitError
from planner.memory.lower import Schedule, lower, prune
from planner.memory.methods.effort import EFFORT, Account, Effort, cut, doubling
from planner.memory.methods.keeping import first_plan
from planner.memory.methods.restricted import every_way, formulate, hint, schedule_of, useful
from planner.memory.problem import MemoryProblem
from planner.memory.relaxation import choices_of, relax
from planner.memory.simulate import simulate

SMALL = 16
"""So many stages are one program, which is solved at once."""
OnBetter = Callable[[Schedule], None]


def solve_windows(
    problem: MemoryProblem,
    start: Schedule | None = None,
    effort: Effort = EFFORT,
    on_better: OnBetter | None = None,
) -> Schedule | None:
    """The best schedule found within the budget, pruned; None when there was no start and nothing was found.

    `start` is a pruned schedule within the budget. `on_better` hears of each better one. For a given number of steps
    the result is the same each time, unless one of the clocks ended a solve.
    """
    search = _Search(problem, effort, on_better, start)
    stages = range(1, len(problem.bwd) + 1)
    if len(stages) <= SMALL:
        search.step(set(stages), search.every, 1.0)
        return search.best
    search.better(first_plan(problem, search.account))
    guess = search.guess()
    for ways in ([{way} for way in guess] if guess else search.every, search.every):
        for count in doubling(8, min(effort.windows, len(stages))):
            if search.account.spent():
                return search.best
            better = search.step({window.start for window in cut(problem, count)}, ways, 1.0)
            if search.best is not None and count >= 16 and not better:
                break
        if search.best is not None:
            break
    width = max(2, len(stages) // 8)
    while search.best is not None and not search.account.spent() and width < 2 * len(stages):
        improved = False
        for part in _ranges(problem, search.best, width):
            if search.account.spent():
                break
            free = [search.every[t - 1] if t in part else set() for t in stages]
            improved |= search.step(set(part), free, 0.25)
        if not search.account.spent():
            improved |= search.step(set(), search.every, 0.5)
        width = width if improved else 2 * width
    return search.best


def _ranges(problem: MemoryProblem, schedule: Schedule, width: int) -> list[range]:
    """Overlapping ranges of stages, those first that recompute longest."""
    lost = [sum(problem.fwd[run.node].impls[run.impl].time(True) for run in runs) for runs in schedule.runs]
    half = max(1, width // 2)
    ranges = [range(first, min(first + width, len(lost))) for first in range(1, max(2, len(lost) - half), half)]
    return sorted(ranges, key=lambda stages: (-sum(lost[t] for t in stages), stages.start))


class _Search:
    """The best schedule so far; `every` are the implementations of each backward node."""

    def __init__(
        self, problem: MemoryProblem, effort: Effort, on_better: OnBetter | None, best: Schedule | None
    ) -> None:
        self.problem, self.on_better, self.best = problem, on_better, best
        self.account = Account(effort)
        self.every = [set(ways) for ways in every_way(problem)]
        self.good = useful(problem)
        self.time_ns = None if best is None else simulate(problem, lower(problem, best)).time_ns

    def guess(self) -> tuple[int, ...] | None:
        """Implementations of backward nodes that a relaxation of few windows chooses."""
        relaxed = relax(self.problem, cut(self.problem, 2))
        try:
            solution = self.account.solve(relaxed.model, 0.25)
        except LimitError:
            return None
        return choices_of(relaxed, solution) if solution.found else None

    def step(self, free: set[int], ways: Sequence[set[int]], share: float) -> bool:
        """Solves with every useful run allowed in the free stages and `ways` for the backward nodes, besides what the
        best schedule does; whether that gave a better one."""
        allowed = [self.good[t] if t in free else frozenset[int]() for t in range(len(self.problem.bwd) + 1)]
        if self.best is not None:
            allowed = [nodes | {run.node for run in runs} for nodes, runs in zip(allowed, self.best.runs, strict=True)]
            ways = [some | {way} for some, way in zip(ways, self.best.backward, strict=True)]
        program = formulate(self.problem, allowed, [sorted(some) for some in ways])
        if self.best is not None:
            hint(program, self.best)
        try:
            solution = self.account.solve(program.model, share)
        except LimitError:
            return False
        if not solution.found:
            return False
        return self.better(prune(self.problem, schedule_of(program, solution)))

    def better(self, schedule: Schedule | None) -> bool:
        """Takes a schedule that fits and is faster than the best; whether it was."""
        if schedule is None:
            return False
        result = simulate(self.problem, lower(self.problem, schedule))
        fits = result.peak_bytes <= self.problem.budget_bytes
        if not fits or (self.time_ns is not None and result.time_ns >= self.time_ns):
            return False
        self.best, self.time_ns = schedule, result.time_ns
        if self.on_better:
            self.on_better(schedule)
        return True
