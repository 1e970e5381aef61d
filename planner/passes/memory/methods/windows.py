"""Plans for large problems: restricted 0-1 programs (`restricted.py`) of all stages, then of a few stages at a time.

1. From a known plan, programs let every stage recompute the nodes nearest to what it reads (`near.py`), and choose all
   that is kept, overwritten and implemented anew. The number of near runs doubles while programs are solved in their
   limits.
2. Without a plan, or where these programs are too large, a first plan comes from the relaxation (`unfolding.py`).
   Recomputation then starts only where windows of stages begin: what a window reads again is recomputed in its first
   stage and kept until its last use. Finer windows trade size for quality. Implementations of backward nodes are first
   those that the relaxation chooses.
3. A large neighbourhood search ("Using Constraint Programming and Local Search Methods to Solve Vehicle Routing
   Problems", P. Shaw) improves the best plan: one range of stages may run anything, the others what the plan runs and,
   where the programs of step 1 were solved, what is near. Every program contains the plan it starts from, and its rows
   are those of MONeT (equations 4.1 to 4.15), so every solution fits the budget and none is worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.planner.errors import LimitError
from treadle.planner.passes.memory.lower import RecomputeSchedule, prune
from treadle.planner.passes.memory.methods.limits import LIMITS, Account, SolveLimits, cut, doubling
from treadle.planner.passes.memory.methods.near import nearest_runs
from treadle.planner.passes.memory.methods.restricted import Allowed, every_choice, formulate, hint, schedule_of, useful
from treadle.planner.passes.memory.methods.unfolding import first_plan
from treadle.planner.passes.memory.problem import MemoryProblem
from treadle.planner.passes.memory.relaxation import choices_of, relax
from treadle.planner.passes.memory.simulate import simulated

SMALL = 16
"""Stages up to which one program of all is solved."""
MOST = 2000
"""Near runs up to which a program is solved in its limits."""
OnBetter = Callable[[RecomputeSchedule], None]


def solve_windows(
    problem: MemoryProblem,
    start: RecomputeSchedule | None = None,
    limits: SolveLimits = LIMITS,
    on_better: OnBetter | None = None,
) -> RecomputeSchedule | None:
    """The best schedule found within the budget, pruned; None when there was no start and nothing was found.

    `start` is a pruned schedule within the budget. `on_better` is called with each better one. Equal inputs
    and steps give equal results, unless a clock ended a solve.
    """
    search = _Search(problem, limits, on_better, start)
    stages = range(1, len(problem.bwd) + 1)
    if len(stages) <= SMALL:
        search.step(search.good, search.every, 1.0)
        return search.best
    near = search.near() if search.best is not None else None
    if near is None:
        search.coarse()
    others = near or [frozenset[int]()] * (len(stages) + 1)
    width = max(2, len(stages) // 8)
    while search.best is not None and not search.account.spent() and width < 2 * len(stages):
        improved = False
        for part in _ranges(problem, search.best, width):
            if search.account.spent():
                break
            allowed = [search.good[t] if t in part else nodes for t, nodes in enumerate(others)]
            choices = [choices if near or t in part else set() for t, choices in enumerate(search.every, 1)]
            improved |= search.step(allowed, choices, 0.25)
        if not near and not search.account.spent():
            improved |= search.step(others, search.every, 0.5)
        width = width if improved else 2 * width
    return search.best


def _ranges(problem: MemoryProblem, schedule: RecomputeSchedule, width: int) -> list[range]:
    """Overlapping ranges of stages, those first that recompute longest."""
    lost = [sum(problem.fwd[run.node].impls[run.impl].time(True) for run in runs) for runs in schedule.runs]
    half = max(1, width // 2)
    ranges = [range(first, min(first + width, len(lost))) for first in range(1, max(2, len(lost) - half), half)]
    return sorted(ranges, key=lambda stages: (-sum(lost[t] for t in stages), stages.start))


class _Search:
    """The best schedule so far; `every` are the implementations of each backward node, `good` the useful runs of each
    stage. `solved`: no limit ended the last step."""

    def __init__(
        self, problem: MemoryProblem, limits: SolveLimits, on_better: OnBetter | None, best: RecomputeSchedule | None
    ) -> None:
        self.problem, self.on_better, self.best = problem, on_better, best
        self.account = Account(limits)
        self.every = [set(choices) for choices in every_choice(problem)]
        self.good = useful(problem)
        self.solved = False
        self.time_ns = None if best is None else simulated(problem, best).time_ns

    def guess(self) -> tuple[int, ...] | None:
        """Implementations of backward nodes that a relaxation of few windows chooses."""
        relaxed = relax(self.problem, cut(self.problem, 2))
        try:
            solution = self.account.solve(relaxed.model, 0.25)
        except LimitError:
            return None
        return choices_of(relaxed, solution) if solution.found else None

    def near(self) -> Allowed | None:
        """Improve the whole schedule with 2, 4, 8, .. near runs a stage on average; return the most of them whose
        program was solved within its limits, if any."""
        solved = None
        for each in doubling(2, self.account.limits.windows // 4):
            count = each * len(self.problem.bwd)
            if count > MOST or self.account.spent():
                break
            runs = nearest_runs(self.problem, [sorted(choices) for choices in self.every], count)
            self.step(runs, self.every, 1.0)
            if not self.solved:
                break
            solved = runs
        return solved

    def coarse(self) -> None:
        """A first plan, then programs that recompute only where finer and finer windows begin."""
        stages = len(self.problem.bwd)
        self.better(first_plan(self.problem, self.account))
        guess = self.guess()
        for choices in ([{way} for way in guess] if guess else self.every, self.every):
            for count in doubling(8, min(self.account.limits.windows, stages)):
                if self.account.spent():
                    return
                starts = {window.start for window in cut(self.problem, count)}
                allowed = [nodes if t in starts else frozenset[int]() for t, nodes in enumerate(self.good)]
                better = self.step(allowed, choices, 1.0)
                if self.best is not None and count >= 16 and not better:
                    break
            if self.best is not None:
                break

    def step(self, allowed: Allowed, choices: Sequence[set[int]], share: float) -> bool:
        """Solve with the `allowed` runs of each stage and the `choices` for backward nodes, besides those of the best
        schedule; return whether that gave a better one."""
        self.solved = False
        if self.best is not None:
            allowed = [nodes | {run.node for run in runs} for nodes, runs in zip(allowed, self.best.runs, strict=True)]
            choices = [some | {way} for some, way in zip(choices, self.best.backward, strict=True)]
        program = formulate(self.problem, allowed, [sorted(some) for some in choices])
        if self.best is not None:
            hint(program, self.best)
        try:
            solution = self.account.solve(program.model, share)
        except LimitError:
            return False
        self.solved = solution.limit_fired is None and not solution.interrupted
        if not solution.found:
            return False
        return self.better(prune(self.problem, schedule_of(program, solution)))

    def better(self, schedule: RecomputeSchedule | None) -> bool:
        """Take a schedule if it fits and is faster than the best; return whether it was."""
        if schedule is None:
            return False
        result = simulated(self.problem, schedule)
        fits = result.peak_bytes <= self.problem.budget_bytes
        if not fits or (self.time_ns is not None and result.time_ns >= self.time_ns):
            return False
        self.best, self.time_ns = schedule, result.time_ns
        if self.on_better:
            self.on_better(schedule)
        return True
