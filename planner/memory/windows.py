"""Plans for large problems: recompute only where windows of stages begin, then improve a few stages at a time.

With windows of several stages the restricted 0-1 program (`planner.memory.restricted`) is small: whatever a window
reads again is made in its first stage and stays until its last use. Finer and finer windows trade size for quality. A
large neighbourhood search goes on from the best plan ("Using Constraint Programming and Local Search Methods to Solve
Vehicle Routing Problems", P. Shaw): the runs of the plan may stay or go, and one range of stages may run anything.
Every program contains the plan it starts from, so no step makes it worse, and every solution is a plan within the
budget: its rows are those of MONeT (equations 4.1 to 4.15).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.errors import LimitError
from planner.memory.lower import Schedule, lower, prune
from planner.memory.problem import MemoryProblem
from planner.memory.restricted import Allowed, formulate, hint, schedule_of, useful
from planner.memory.simulate import simulate
from planner.solver import solve

OnBetter = Callable[[Schedule], None]


@dataclass(frozen=True)
class Effort:
    """`windows` at most in one program, `nodes` of branch and bound and `seconds_each` at most in one solve, `steps`
    solves in all; `seconds` of wall clock in all is the net. A solve stops at relative gap `gap`."""

    windows: int = 64
    nodes: int = 2000
    steps: int = 60
    gap: float = 1e-4
    seconds_each: float = 60.0
    seconds: float | None = None
    workers: int = 1


EFFORT = Effort()


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
    for count in doubling(4, min(effort.windows, len(problem.bwd))):
        if search.over():
            return search.best
        firsts = {window.start for window in cut(problem, count)}
        found = search.step([t in firsts for t in range(len(problem.bwd) + 1)])
        if found is False and search.best is not None and count >= 16:
            break
    width = max(2, len(problem.bwd) // 16)
    while search.best is not None and not search.over() and width < 2 * len(problem.bwd):
        improved = False
        for stages in _ranges(problem, search.best, width):
            if search.over():
                break
            improved |= search.step([t in stages for t in range(len(problem.bwd) + 1)])
        width = width if improved else 2 * width
    return search.best


def doubling(first: int, last: int) -> Iterator[int]:
    """first, 2 first, 4 first, .. below `last`, then `last`."""
    count = min(first, last)
    while count < last:
        yield count
        count *= 2
    yield last


def cut(problem: MemoryProblem, count: int) -> list[range]:
    """Stages 1..K in at most `count` windows that read about equal bytes of forward outputs."""
    stages = len(problem.bwd)
    weight = [1.0] * stages
    total = sum(node.out_bytes for node in problem.fwd) / stages or 1.0
    for k, back in enumerate(problem.bwd):
        weight[k] += sum(problem.fwd[i].out_bytes for i in back.impls[0].needs) / total
    share, passed = sum(weight) / count, 0.0
    starts: list[int] = []
    for k in range(stages):
        if passed >= share * len(starts):
            starts.append(k + 1)
        passed += weight[k]
    ends = [*starts[1:], stages + 1]
    return [range(first, end) for first, end in zip(starts, ends, strict=True)]


def _ranges(problem: MemoryProblem, schedule: Schedule, width: int) -> list[range]:
    """Overlapping ranges of stages, those first that recompute longest."""
    lost = [sum(problem.fwd[run.node].impls[run.impl].time(True) for run in runs) for runs in schedule.runs]
    half = max(1, width // 2)
    ranges = [range(first, min(first + width, len(lost))) for first in range(1, max(2, len(lost) - half), half)]
    return sorted(ranges, key=lambda stages: (-sum(lost[t] for t in stages), stages.start))


class _Search:
    """The best schedule so far, and what is left of the effort."""

    def __init__(
        self, problem: MemoryProblem, effort: Effort, on_better: OnBetter | None, best: Schedule | None
    ) -> None:
        self.problem, self.effort, self.on_better, self.best = problem, effort, on_better, best
        self.good = useful(problem)
        self.steps = effort.steps
        self.deadline = None if effort.seconds is None else time.monotonic() + effort.seconds
        self.time_ns = None if best is None else simulate(problem, lower(problem, best)).time_ns

    def left(self) -> float:
        limit = self.effort.seconds_each
        return limit if self.deadline is None else min(limit, self.deadline - time.monotonic())

    def over(self) -> bool:
        return self.steps <= 0 or self.left() <= 0

    def step(self, free: list[bool]) -> bool:
        """Solves with every useful run allowed in the free stages; whether that gave a better schedule."""
        self.steps -= 1
        allowed: list[frozenset[int]] = [self.good[t] if open_ else frozenset() for t, open_ in enumerate(free)]
        if self.best is not None:
            allowed = [nodes | {run.node for run in runs} for nodes, runs in zip(allowed, self.best.runs, strict=True)]
        return self.solve(allowed)

    def solve(self, allowed: Allowed) -> bool:
        program = formulate(self.problem, allowed)
        if self.best is not None:
            hint(program, self.best)
        try:
            solution = solve(
                program.model,
                backend="highs",
                gap=self.effort.gap,
                node_limit=self.effort.nodes,
                time_limit_s=self.left(),
                workers=self.effort.workers,
            )
        except LimitError:
            return False
        if not solution.found:
            return False
        schedule = prune(self.problem, schedule_of(program, solution))
        result = simulate(self.problem, lower(self.problem, schedule))
        fits = result.peak_bytes <= self.problem.budget_bytes
        if not fits or (self.time_ns is not None and result.time_ns >= self.time_ns):
            return False
        self.best, self.time_ns = schedule, result.time_ns
        if self.on_better:
            self.on_better(schedule)
        return True
